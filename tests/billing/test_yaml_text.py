"""Whatever a YAML text holds, it is plain values or one line that says why not."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidPrice
from billing.price_file import parse_yaml
from billing.yaml_text import YamlFault, read_yaml

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{chr(98 + at)}: &{chr(98 + at)} [{','.join(['*' + chr(97 + at)] * 9)}]" for at in range(9)
)
FAULTS = {
    "{": "no YAML",
    "[" * 5000: "nested too deeply",
    "{a: " * 3000: "nested too deeply",
    BOMB: "aliases",
    "&a [*a]": "aliases",
    "models: 2026-13-45": "month",
    "models: !!int x": "cannot be read",
    "models: !!float .": "cannot be read",
    "models: !!timestamp x": "cannot be read",
    "!!python/object/apply:os.system [id]": "no YAML",
    "a: 1\n---\nb: 2": "no YAML",
    "\x00": "no YAML",
}


@pytest.mark.parametrize("text", FAULTS, ids=lambda text: repr(text[:20]))
def test_rule_31_a_text_that_is_out_of_bounds_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(YamlFault, match=FAULTS[text]) as refused:
        read_yaml(text)
    assert "\n" not in str(refused.value)
    with pytest.raises(InvalidPrice) as price:
        parse_yaml(text)
    assert price.value.field == "file"


_TEXTS = st.text(st.sampled_from("ab1-:.,!&*[]{}?|>'\"#%@\n te0xZ~=<"), max_size=40)


@given(st.one_of(_TEXTS, st.builds("models: !!{} {}".format, st.sampled_from(["int", "float", "set", "omap"]), _TEXTS)))
def test_no_text_does_anything_else(text: str) -> None:
    with contextlib.suppress(YamlFault):
        assert type(read_yaml(text)).__module__ in ("builtins", "datetime")
