"""No caller's grammar ends the process or holds a thread for long: too large ones are a 400 that says what to do."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from typing import Any

import llguidance
import pytest

from local_engine.deep_threads import STACK_BYTES, deep_threads
from local_engine.errors import RequestError
from local_engine.server.grammar_limits import MAX_LEVELS, MAX_MULTIPLE, excess
from local_engine.server.requests import CompletionRequest
from local_engine.server.structure import grammar_of


def references(count: int, between: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> dict[str, Any]:
    """A schema in which one definition leads to the next."""
    leading = {f"d{number}": between({"$ref": f"#/$defs/d{number + 1}"}) for number in range(count - 1)}
    return {"$defs": {**leading, f"d{count - 1}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def rules(count: int, names: str, brackets: int = 0) -> str:
    """One rule leads to the next, within so many brackets."""
    chain = [f"{names}{number}: {'(' * brackets}{names}{number + 1} /a/{')' * brackets}" for number in range(count - 1)]
    return "\n".join((f"start: {names}0", *chain, f'{names}{count - 1}: "a"'))


def asked(**structure: Any) -> CompletionRequest:
    return CompletionRequest(model="m", prompt="p", **structure)


@pytest.mark.parametrize(
    "structure",
    [
        {"guided_json": references(10_000)},
        {"guided_json": references(6_000, lambda ref: {"items": {"items": ref}})},
        {"guided_grammar": rules(20_000, "r")},
        {"guided_grammar": rules(20_000, "R")},
        {"guided_grammar": rules(1_000, "r", brackets=25)},
        {"guided_grammar": f"start: %json {json.dumps(references(10_000))}"},
    ],
    ids=["refs", "nested refs", "rules", "terminals", "brackets", "schema within"],
)
def test_a_chain_that_overflows_the_stack_is_refused_before_it_is_followed(structure: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"of which {MAX_LEVELS} are allowed: write out what is used"):
        grammar_of(asked(**structure))


@pytest.mark.parametrize(
    "grammar",
    [
        llguidance.LLMatcher.grammar_from_json_schema(references(MAX_LEVELS // 3)),
        rules(MAX_LEVELS // 2, "r"),
        rules(MAX_LEVELS // 2, "R"),
        rules(MAX_LEVELS // 27, "R", brackets=25),
    ],
    ids=["refs", "rules", "terminals", "brackets"],
)
def test_what_is_allowed_fits_a_quarter_of_the_threads_stack(grammar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert excess(grammar) is None
    monkeypatch.setattr("local_engine.deep_threads.STACK_BYTES", STACK_BYTES // 4)
    with deep_threads(1, "small") as threads:
        threads.submit(llguidance.LLMatcher.validate_grammar_with_warnings, grammar, None).result()


def test_a_text_of_megabytes_is_refused() -> None:
    with pytest.raises(RequestError, match="characters long"):
        grammar_of(asked(guided_choice=[str(number) for number in range(200_000)]))


@pytest.mark.parametrize("steps", [[100_000_007], [9_973, 9_967], [0.010_001], [0.000_001, 17.000_001], [1e300]])
def test_a_multiple_of_millions_of_states_is_refused(steps: list[float]) -> None:
    schema = {"allOf": [{"type": "number", "multipleOf": step} for step in steps]}
    with pytest.raises(RequestError, match=f"more than {MAX_MULTIPLE} states: leave it out"):
        grammar_of(asked(guided_json=schema))
    with pytest.raises(RequestError, match=f"more than {MAX_MULTIPLE} states: leave it out"):
        grammar_of(asked(guided_grammar=f"start: %json {json.dumps(schema)}"))


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(900):
        schema = {"items": schema}
    with pytest.raises(RequestError, match="guided_json cannot be followed"):
        grammar_of(asked(guided_json=schema))


@pytest.mark.parametrize("steps", [[0.01], [5, 10, 60, 15], [0.05, 0.25], [1000], [2.5]])
def test_usual_multiples_are_followed(steps: list[float]) -> None:
    schema = {"type": "array", "prefixItems": [{"type": "number", "multipleOf": step} for step in steps]}
    assert grammar_of(asked(guided_json=schema)) is not None


def test_signs_within_strings_comments_and_expressions_are_no_rules() -> None:
    lines = [f'    | ":{number}((" | /[:(]{{{number}}}/ // a: b: c: ((' for number in range(MAX_LEVELS)]
    assert excess("\n".join(['start: "a"', *lines])) is None


def test_address_space_is_all_that_a_deep_stack_takes() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with deep_threads(4, "idle") as threads:
        assert threads.submit(int, "7").result() == 7
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < STACK_BYTES // 2
