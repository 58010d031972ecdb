"""No number that a caller can write is our mistake: it is honoured, or it is a 400 that names its parameter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import get_args, get_type_hints

import httpx
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from local_engine.ranges import ITEM_RANGES, RANGES
from local_engine.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)

from .running import RunningEngine

CHAT = {"model": "tiny-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
COMPLETION = {"model": "tiny-model", "prompt": "hi", "max_tokens": 2}
ROUTES: dict[str, tuple[type[msgspec.Struct], dict[str, object]]] = {
    "/v1/chat/completions": (ChatRequest, CHAT),
    "/v1/completions": (CompletionRequest, COMPLETION),
    "/v1/embeddings": (EmbeddingRequest, {"model": "tiny-model", "input": "hi"}),
    "/tokenize": (TokenizeRequest, {"prompt": "hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [104]}),
}


def holds_numbers(kind: object) -> bool:
    return kind in (int, float) or any(holds_numbers(part) for part in get_args(kind))


def numeric_fields(body: type[msgspec.Struct]) -> list[str]:
    return [name for name, kind in get_type_hints(body).items() if holds_numbers(kind)]


FIELDS = [(route, name) for route, (body, _) in ROUTES.items() for name in numeric_fields(body)]
FIELDS += [("/v1/completions", "prompt")]

EDGES = [
    bound + step for allowed in (*RANGES.values(), *ITEM_RANGES.values()) for bound in (allowed.low, allowed.high)
    for step in (-1, 0, 1)
]  # fmt: skip
NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(-(1 << 80), 1 << 80).map(str),
    st.floats(allow_nan=True).map(json.dumps),
    st.sampled_from([repr(edge) for edge in EDGES]),
    st.sampled_from(["1" + "0" * 20, "9" * 4_200, "9" * 5_000, "1e999", "-1e999", "1e-300", "5e-324", "-0.0", "NaN"]),
)
VALUES = st.one_of(NUMBERS, st.sampled_from(["null", "true", "false", '"5"', '""', "{}", "[]", "[[]]", "[null]"]))
SHAPES = st.sampled_from(["%s", "[%s]", "[[%s]]", "[104,%s]", '{"%s":1}', '{"5":%s}', '{"x":%s}'])


@pytest.fixture(scope="module")
def caller(parrot: RunningEngine) -> Iterator[httpx.Client]:
    """One connection for all examples."""
    with httpx.Client(base_url=parrot.url, trust_env=False, verify=False, timeout=30) as client:
        yield client


@pytest.mark.parametrize("body", [body for body, _ in ROUTES.values()])
def test_every_number_of_a_body_has_a_named_range(body: type[msgspec.Struct]) -> None:
    assert set(numeric_fields(body)) <= RANGES.keys() | ITEM_RANGES.keys()


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(FIELDS), SHAPES, VALUES)
@example(("/v1/completions", "top_k"), "%s", "1" + "0" * 20)
@example(("/v1/completions", "repetition_penalty"), "%s", "1e-300")
@example(("/v1/completions", "logit_bias"), '{"%s":1}', "9" * 5_000)
@example(("/v1/completions", "temperature"), "%s", "1e999")
@example(("/v1/completions", "prompt"), "[%s]", "9" * 4_200)
def test_no_number_of_any_route_is_our_mistake(
    caller: httpx.Client, field: tuple[str, str], shape: str, value: str
) -> None:
    route, name = field
    rest = json.dumps({key: item for key, item in ROUTES[route][1].items() if key != name})[1:]
    shaped = shape % (value.replace('"', "") if shape == '{"%s":1}' else value)
    data = f'{{"{name}": {shaped}{", " if rest != "}" else ""}{rest}'
    answer = caller.post(route, content=data.encode())
    assert answer.status_code in (200, 400), (data[:200], answer.text)
    if answer.status_code == 400 and "valid JSON" not in answer.json()["error"]["message"]:
        assert str(answer.json()["error"]["param"]).split("[")[0] in (name, *CHAT, *COMPLETION), answer.text


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ["1" + "0" * 20, "-1" + "0" * 20, "1e999"])
def test_a_number_out_of_range_is_refused_by_its_name(caller: httpx.Client, field: tuple[str, str], value: str) -> None:
    route, name = field
    rest = {key: item for key, item in ROUTES[route][1].items() if key != name}
    shaped = value if name in RANGES else f'{{"5": {value}}}' if name == "logit_bias" else f"[{value}]"
    data = json.dumps({**rest, name: "HERE"}).replace('"HERE"', shaped)
    answer = caller.post(route, content=data.encode())
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == name
    assert "must be in" in answer.json()["error"]["message"]
