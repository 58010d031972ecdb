"""Law: whatever caps a caller names, and by whatever names, what was reserved is the one cap that reaches the provider."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from gateway.api.caps import CAPS
from gateway.api.chat import ChatCompletions
from gateway.api.completions import Completions
from gateway.api.messages import Messages, speak
from gateway.api.responses import Responses
from gateway.api.surface import MOST_CHOICES, Surface
from gateway.errors import ApiError
from gateway.routing.provider import ADAPTERS, Provider
from gateway.settings import ProviderSettings
from gateway.upstream.base import Call
from tests.gateway.api.conftest import MESSAGES, Gateway, Upstream
from tests.gateway.upstream.routes import route_to

MODEL_MAXIMUM = 4096

BODIES: dict[str, tuple[Surface, dict[str, Any]]] = {
    "chat": (ChatCompletions(), {"messages": [{"role": "user", "content": "x"}]}),
    "completions": (Completions(), {"prompt": "x"}),
    "messages": (Messages(), {"messages": [{"role": "user", "content": "x"}]}),
}


def sent(call: Call, kind: str, output_cap: int | None) -> dict[str, Any]:
    settings = ProviderSettings(kind=kind, base_url="http://127.0.0.1:9")  # type: ignore[arg-type]
    provider = Provider("p", settings)
    route = route_to(provider, "m")
    adapter = provider.adapter if call.over is None else call.over(provider.adapter)
    outgoing = adapter.prepare(call, route, request_id="r", output_cap=output_cap, team_id="t")
    fields: dict[str, Any] = json.loads(outgoing.body)
    return fields


def caps_in(fields: dict[str, Any]) -> list[int]:
    config = fields.get("generationConfig", {})
    return [value for name, value in [*fields.items(), *config.items()] if name in CAPS]


@pytest.mark.parametrize(
    ("surface", "kind"),
    [*itertools.product(("chat", "messages"), sorted(ADAPTERS)), ("completions", "openai"), ("completions", "engine")],
)
def test_of_several_caps_the_smallest_is_read_and_it_alone_goes_up(surface: str, kind: str) -> None:
    reader, body = BODIES[surface]
    for one, other in itertools.permutations(sorted(CAPS), 2):
        call = reader.read(json.dumps({"model": "m", one: 10, other: 90_000, **body}).encode())
        assert call.output_cap == 10, (one, other)
        assert caps_in(sent(call, kind, 10)) == [10], (one, other)
        if one == "max_tokens":
            assert caps_in(sent(call, kind, 7)) == [7], "what was reserved wins over what was named"


@pytest.mark.parametrize("kind", ["openai", "engine"])
@pytest.mark.parametrize("name", sorted(CAPS))
def test_a_cap_beside_one_that_is_null_goes_up_alone(name: str, kind: str) -> None:
    other = "max_tokens" if name != "max_tokens" else "max_completion_tokens"
    call = ChatCompletions().read(json.dumps({"model": "m", other: None, name: 10, **BODIES["chat"][1]}).encode())
    fields = sent(call, kind, 10)
    assert call.output_cap == 10 and caps_in(fields) == [10]


def test_the_name_that_the_caller_chose_is_kept_when_it_stands_alone() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        call = ChatCompletions().read(json.dumps({"model": "m", name: 10, **BODIES["chat"][1]}).encode())
        assert sent(call, "openai", 10)[name] == 10


@pytest.mark.parametrize("name", ["min_tokens", "min_new_tokens", "min_length"])
def test_a_minimum_above_the_cap_is_refused_by_name(name: str) -> None:
    call = ChatCompletions().read(json.dumps({"model": "m", "max_tokens": 10, name: 11, **BODIES["chat"][1]}).encode())
    with pytest.raises(ApiError, match=f"'{name}' is 11, but at most 10 output tokens") as refused:
        sent(call, "openai", 10)
    assert (refused.value.status, refused.value.param) == (400, name)
    call = ChatCompletions().read(json.dumps({"model": "m", "max_tokens": 10, name: 10, **BODIES["chat"][1]}).encode())
    assert sent(call, "openai", 10)[name] == 10


def test_every_generated_choice_is_reserved() -> None:
    for reader, body in (BODIES["chat"], BODIES["completions"]):
        call = reader.read(json.dumps({"model": "m", "n": 2, "best_of": 7, **body}).encode())
        assert (call.choices, call.generated) == (2, 7)


def test_responses_know_one_cap_and_refuse_the_others() -> None:
    for name in sorted(CAPS - {"max_output_tokens"}):
        call = Responses().read(
            json.dumps({"model": "m", "input": "x", "max_output_tokens": 10, name: 90_000}).encode()
        )
        with pytest.raises(ApiError, match=f"'{name}'"):
            sent(call, "openai", 10)
    call = Responses().read(b'{"model":"m","input":"x","max_output_tokens":10}')
    assert caps_in(sent(call, "openai", 10)) == [10]


def test_messages_of_anthropics_own_have_one_answer() -> None:
    call = Messages().read(json.dumps({"model": "m", "max_tokens": 5, "n": 3, **BODIES["messages"][1]}).encode())
    for kind in sorted(ADAPTERS):
        with pytest.raises(ApiError, match="'n'"):
            sent(call, kind, 5)
    assert speak(ADAPTERS["anthropic"]) is ADAPTERS["anthropic"]


async def test_two_caps_do_not_pass_a_hard_budget(gateway: Gateway, up: Upstream) -> None:
    """0.42 USD a million, at 1:1: ten tokens fit the budget of 0.00002 CNY easily, ninety thousand by no means."""
    budget = {"scope": "team", "scope_id": gateway.team_id, "amount": "0.00002", "currency": "CNY", "period": "day"}
    await gateway.admin("/budgets", {**budget, "timezone": "UTC", "hard": True})
    answer = await gateway.chat("output=10", max_completion_tokens=10, max_tokens=90_000)
    assert answer.status_code == 200, answer.text
    body = (await up.book())[-1]["body"]
    assert caps_in(body) == [10]
    refused = await gateway.chat("output=10", max_completion_tokens=90_000)
    assert refused.status_code == 402


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_cap_above_the_models_maximum_goes_up_clamped_with_a_budget_or_without(
    gateway: Gateway, up: Upstream, field: str
) -> None:
    for path, fields in (("/v1/chat/completions", {"messages": MESSAGES}), ("/v1/completions", {"prompt": "x"})):
        answer = await gateway.client.post(path, json={"model": "m", field: 10**12, **fields})
        assert answer.status_code == 200, answer.text
        assert caps_in((await up.book())[-1]["body"]) == [MODEL_MAXIMUM]


async def test_no_cap_goes_up_with_embeddings(gateway: Gateway, up: Upstream) -> None:
    answer = await gateway.client.post("/v1/embeddings", json={"model": "m", "input": "x"})
    assert answer.status_code == 200, answer.text
    assert caps_in((await up.book())[-1]["body"]) == []


@pytest.mark.parametrize("name", ["n", "max_tokens", "max_completion_tokens", "best_of"])
@pytest.mark.parametrize("value", [-1, -(10**30), 1.5, "7", True, [1], {}])
def test_a_count_that_is_none_is_refused_by_its_name_before_anything_is_reserved(name: str, value: object) -> None:
    reader, body = BODIES["completions" if name in ("best_of", "max_tokens") else "chat"]
    with pytest.raises(ApiError) as caught:
        reader.read(json.dumps({"model": "m", **body, name: value}).encode())
    assert (caught.value.status, caught.value.param) == (400, name)


def test_so_many_choices_are_refused_not_reserved() -> None:
    for value in (0, MOST_CHOICES + 1, 10**30):
        with pytest.raises(ApiError, match=f"between 1 and {MOST_CHOICES}"):
            ChatCompletions().read(json.dumps({"model": "m", **BODIES["chat"][1], "n": value}).encode())
