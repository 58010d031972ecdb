"""Other models, other keys, other providers' minutes: what serves a request that its first route does not."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gateway.metering.errors import JournalFull
from gateway.settings import Settings, SettingsError, load_settings
from tests.gateway.api.conftest import MESSAGES, Gateway, Provisioned, Upstream, environment, running

CONFIG = """\
providers:
  up: {{kind: openai, base_url: "http://127.0.0.1:{up}/v1", api_keys: [key-one-AAAA, key-two-BBBB, key-three-CCCC]}}
  spare: {{kind: openai, base_url: "http://127.0.0.1:{spare}/v1"}}
  dead: {{kind: openai, base_url: "http://127.0.0.1:{dead}/v1"}}
  narrow: {{kind: openai, base_url: "http://127.0.0.1:{up}/v1", price_as: up, requests_per_minute: 2, queue_s: 0.05}}
  slim: {{kind: openai, base_url: "http://127.0.0.1:{up}/v1", price_as: up, tokens_per_minute: 500, queue_s: 0}}
models:
  - {{name: small, context_window: 100, fallbacks: [same, large], routes: [{{provider: up, model: up-m}}]}}
  - {{name: same, context_window: 100, routes: [{{provider: dead, model: x}}]}}
  - name: large
    context_window: 10000
    max_output_tokens: 20
    fallbacks: [free]
    routes: [{{provider: spare, model: spare-m}}]
  - {{name: lost, fallbacks: [same, large], routes: [{{provider: dead, model: y}}]}}
  - {{name: keyed, aliases: [also-keyed, up-m], routes: [{{provider: up, model: up-m}}]}}
  - {{name: narrow, routes: [{{provider: narrow, model: up-m}}, {{provider: spare, model: spare-m}}]}}
  - {{name: narrow-only, routes: [{{provider: narrow, model: up-m}}]}}
  - {{name: slim, routes: [{{provider: slim, model: up-m}}, {{provider: spare, model: spare-m}}]}}
  - {{name: free, routes: [{{provider: up, model: nobody-knows}}]}}
"""
QUICK = {"x-metergate-no-retry": "1"}


@pytest.fixture
def settings(tmp_path: Path, up: Upstream, spare: Upstream, dead_port: int, provisioned: Provisioned) -> Settings:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG.format(up=up.port, spare=spare.port, dead=dead_port))
    database = tmp_path / "metergate.db"
    shutil.copyfile(provisioned.database, database)
    return load_settings(config, environment(tmp_path, database))


@pytest.fixture
async def gateway(settings: Settings, provisioned: Provisioned) -> AsyncIterator[Gateway]:
    async with running(settings) as gateway:
        gateway.use(provisioned)
        yield gateway


# ---- other models ----


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_cannot_be_reached_is_served_by_its_fallbacks(gateway: Gateway, stream: bool) -> None:
    """Over a fallback that is down as well. The row keeps the model that was asked for, and the price of what served."""
    answer = await gateway.chat("prompt=0;output=20", model="lost", stream=stream, max_tokens=500)
    assert answer.status_code == 200
    assert answer.headers["x-metergate-model"] == "large" and answer.headers["x-metergate-attempts"] == "3"
    row = await gateway.row(answer)
    assert (row["model"], row["provider"], row["provider_model"]) == ("lost", "spare", "spare-m")
    assert row["settled"]["amount"] == "0.0000084"
    assert [attempt["provider"] for attempt in row["attempts"]] == ["dead", "dead", "spare"]


async def test_a_fallbacks_own_maximum_bounds_what_it_is_asked(gateway: Gateway, spare: Upstream) -> None:
    await gateway.chat(model="lost", max_tokens=500)
    assert [entry["body"]["max_tokens"] for entry in await spare.book()] == [20]


async def test_a_model_without_a_usable_route_goes_to_its_fallback_at_once(gateway: Gateway) -> None:
    """Until then the retry budget of one key lets every request through to it."""
    for _ in range(5):
        assert (await gateway.chat(model="lost")).status_code == 200
    answer = await gateway.chat(model="lost")
    assert answer.headers["x-metergate-model"] == "large" and answer.headers["x-metergate-attempts"] == "1"


async def test_rule_24_a_caller_can_forbid_other_models(gateway: Gateway, spare: Upstream) -> None:
    answer = await gateway.chat(model="lost", headers={**QUICK, "x-metergate-no-fallback": "1"})
    assert answer.status_code == 502 and await spare.book() == []


async def test_a_key_falls_back_only_to_models_that_it_may_use(gateway: Gateway, spare: Upstream) -> None:
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "one", "models": ["lost"]})
    answer = await gateway.chat(model="lost", headers={"authorization": f"Bearer {key['key']}"})
    assert answer.status_code == 502 and await spare.book() == []


async def test_a_prompt_that_cannot_fit_goes_to_a_larger_model(gateway: Gateway, up: Upstream) -> None:
    """Not to one of the same size; without a larger one it is a 400 with the numbers."""
    long = [{"role": "user", "content": "word " * 1000}]
    answer = await gateway.chat(model="small", messages=long)
    assert (answer.status_code, answer.headers["x-metergate-model"]) == (200, "large")
    assert await up.book() == []
    refused = await gateway.chat(model="same", messages=long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_provider_that_says_too_long_is_followed_by_a_larger_model(gateway: Gateway, spare: Upstream) -> None:
    script = "on=up-m;status=400;code=context_length_exceeded"
    answer = await gateway.chat(script, model="small")
    assert (answer.status_code, answer.headers["x-metergate-model"]) == (200, "large")
    assert (await gateway.row(answer))["attempts"][0]["status"] == "failed"
    plain = await gateway.chat("on=up-m;status=400", model="small")
    assert plain.status_code == 400, "any other fault of the caller is nobody else's to try"


async def test_a_fallback_that_the_budget_cannot_cover_is_not_tried(gateway: Gateway, up: Upstream) -> None:
    """A model without a price, where a hard budget counts."""
    budget = {"scope": "team", "scope_id": gateway.team_id, "amount": "100", "currency": "CNY", "period": "day"}
    await gateway.admin("/budgets", {**budget, "timezone": "UTC", "hard": True})
    answer = await gateway.chat("on=spare-m;status=500", model="large", headers=QUICK)
    assert answer.status_code == 502 and await up.book() == []


@pytest.mark.parametrize(
    ("fallbacks", "message"),
    [
        (
            {"a": ["b"], "b": ["a"]},
            "gateway.yaml:4: models[0].fallbacks[0]: falls back to 'b', which leads back to 'a'",
        ),
        ({"a": ["a"]}, "gateway.yaml:4: models[0].fallbacks[0]: falls back to 'a', which leads back to 'a'"),
        (
            {"b": ["c"], "c": ["d"], "d": ["b"]},
            "gateway.yaml:5: models[1].fallbacks[0]: falls back to 'c', which leads",
        ),
        ({"c": ["a", "x"]}, "gateway.yaml:6: models[2].fallbacks[1]: there is no model 'x'; listed: a, b, c, d"),
    ],
)
def test_fallbacks_that_lead_back_or_nowhere_are_refused_with_their_line(
    tmp_path: Path, fallbacks: dict[str, list[str]], message: str
) -> None:
    lines = ['providers: {p: {kind: openai, base_url: "http://p/v1"}}', "", "models:"]
    for name in "abcd":
        routes = "routes: [{provider: p, model: m}]"
        lines.append(f"  - {{name: {name}, {routes}, fallbacks: {fallbacks.get(name, [])}}}")
    config = tmp_path / "gateway.yaml"
    config.write_text("\n".join(lines))
    with pytest.raises(SettingsError, match=re.escape(message)):
        load_settings(config, {})


async def test_an_alias_is_the_model_by_another_name(gateway: Gateway, up: Upstream) -> None:
    key = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "one", "models": ["keyed"]})
    for alias in ("also-keyed", "up-m"):
        answer = await gateway.chat(model=alias, headers={"authorization": f"Bearer {key['key']}"})
        assert answer.status_code == 200 and "x-metergate-model" not in answer.headers
        assert (await gateway.row(answer))["model"] == "keyed"
    assert {entry["body"]["model"] for entry in await up.book()} == {"up-m"}
    assert (await gateway.client.get("/v1/models/also-keyed")).json()["id"] == "keyed"


async def test_a_name_that_nobody_knows_is_served_by_the_default_where_there_is_one(gateway: Gateway) -> None:
    assert (await gateway.chat(model="nobody")).status_code == 404
    router = gateway.services.router
    router.reload(msgspec.structs.replace(gateway.services.settings, default_model="keyed"))
    answer = await gateway.chat(model="nobody")
    assert answer.status_code == 200 and (await gateway.row(answer))["model"] == "keyed"
    assert (await gateway.client.get("/v1/models/nobody")).status_code == 404
    narrow = await gateway.admin("/keys", {"team_id": gateway.team_id, "name": "one", "models": ["large"]})
    refused = await gateway.chat(model="nobody", headers={"authorization": f"Bearer {narrow['key']}"})
    assert refused.status_code == 403


def test_a_name_that_stands_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    routes = "routes: [{provider: p, model: m}]"
    config.write_text(
        'providers: {p: {kind: openai, base_url: "http://p/v1"}}\nmodels:\n'
        f"  - {{name: a, {routes}}}\n  - {{name: b, aliases: [c, a], {routes}}}\n"
    )
    with pytest.raises(
        SettingsError, match=re.escape("gateway.yaml:4: models[1].aliases[1]: the model 'a' is listed twice")
    ):
        load_settings(config, {})


# ---- several keys at one provider ----


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refused", ["status=401", "status=429", "status=429;code=insufficient_quota", "status=402"])
async def test_a_key_that_is_refused_gives_way_to_the_next(
    gateway: Gateway, up: Upstream, refused: str, stream: bool
) -> None:
    answer = await gateway.chat(f"key=AAAA;{refused}", model="keyed", stream=stream)
    assert (answer.status_code, answer.headers["x-metergate-attempts"]) == (200, "2")
    assert (await gateway.chat("key=AAAA;status=500", model="keyed", stream=stream)).status_code == 200
    used = [entry["headers"]["authorization"][-4:] for entry in await up.book()]
    assert used == ["AAAA", "BBBB", "BBBB"]
    routes = (await gateway.operator.get("/admin/v1/routes")).json()["data"]
    assert {(each["health"], each["keys_held"]) for each in routes if each["model"] == "keyed"} == {("up", 1)}


async def test_when_every_key_is_refused_the_route_is_left_alone(gateway: Gateway, up: Upstream) -> None:
    refused = await gateway.chat("status=429;code=insufficient_quota", model="keyed")
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "upstream_quota")
    assert len({entry["headers"]["authorization"] for entry in await up.book()}) == 3
    assert (await gateway.chat(model="keyed")).json()["error"]["code"] == "no_route_available"


async def test_calls_that_were_out_together_turn_the_key_once(gateway: Gateway, up: Upstream) -> None:
    """What went out with the old key and comes back refused says nothing about the new one."""
    answers = await asyncio.gather(*(gateway.chat("key=AAAA;delay_ms=50;status=401", model="keyed") for _ in range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert {entry["headers"]["authorization"][-4:] for entry in await up.book()} == {"AAAA", "BBBB"}


async def test_rule_27_none_of_several_keys_is_told_to_a_caller(gateway: Gateway) -> None:
    answer = await gateway.chat("status=400;quote=key-two-BBBB", model="keyed")
    assert answer.status_code == 400 and "BBBB" not in answer.text


# ---- our account's minute at a provider ----


@pytest.mark.interpreted
async def test_rule_12_what_the_journal_refuses_takes_nothing_of_a_providers_minute(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(record: object) -> None:
        raise JournalFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(gateway.services.journal, "open", full)
        for _ in range(2):
            refused = await gateway.chat(model="narrow")
            assert refused.status_code == 503
    answers = [await gateway.chat(model="narrow") for _ in range(2)]
    assert {each.headers["x-metergate-provider"] for each in answers} == {"narrow"}


async def test_beyond_a_providers_requests_per_minute_another_route_is_asked(gateway: Gateway) -> None:
    served = [(await gateway.chat(model="narrow")).headers["x-metergate-provider"] for _ in range(4)]
    assert served == ["narrow", "narrow", "spare", "spare"]
    last = await gateway.chat(model="narrow-only")
    assert (last.status_code, last.json()["error"]["code"]) == (429, "upstream_rate_limited")
    assert 1 <= int(last.headers["retry-after"]) <= 60


async def test_beyond_a_providers_tokens_per_minute_too_and_what_was_not_used_is_given_back(gateway: Gateway) -> None:
    first = await gateway.chat("prompt=10;output=1", model="slim", max_tokens=450)
    assert first.headers["x-metergate-provider"] == "slim"
    await gateway.settled()
    again = await gateway.chat("prompt=10;output=1", model="slim", max_tokens=450)
    assert again.headers["x-metergate-provider"] == "slim", "the first used 11 tokens, not 460"
    both = await asyncio.gather(*(gateway.chat("delay_ms=1000", model="slim", max_tokens=400) for _ in range(2)))
    assert sorted(each.headers["x-metergate-provider"] for each in both) == ["slim", "spare"]
    huge = await gateway.client.post(
        "/v1/chat/completions", json={"model": "slim", "messages": MESSAGES, "max_tokens": 4000}
    )
    assert huge.headers["x-metergate-provider"] == "spare"
