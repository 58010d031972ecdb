"""What `doctor` says of the parts that no other test starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing.database import open_database
from billing.publishing import PriceDraft, publish_prices
from billing.times import EARLIEST_US
from gateway.doctor import _configuration, _gateway, _webhook, examine
from gateway.doctor_database import prices
from gateway.doctor_finding import Health, ok
from gateway.secret import Secret
from gateway.settings import SettingsError, WebhookSettings, load_settings
from tests.gateway.rates.server import http, serving


@pytest.mark.parametrize(
    "url, networks, health, said",
    [
        ("https://localhost/hook?token=hidden", [], Health.FAIL, "is no public address"),
        ("https://localhost:8443/hook", ["127.0.0.0/8", "::1"], Health.OK, "events go to localhost (127.0.0.1)"),
        ("https://name.invalid/hook", [], Health.FAIL, "name.invalid has no address"),
    ],
)
async def test_the_webhooks_address_is_looked_at_and_its_query_never_shown(
    url: str, networks: list[str], health: Health, said: str
) -> None:
    found = await _webhook(WebhookSettings(url=url, secret=Secret("s"), networks=networks))
    assert found.health is health
    assert said in found.detail
    assert "hidden" not in found.detail + found.remedy
    assert (found.remedy == "") is (health is Health.OK)


async def test_a_gateway_is_asked_whether_it_is_ready_where_it_is_said_to_be(tmp_path: Path) -> None:
    settings = load_settings(None, {"METERGATE_HOME": str(tmp_path), "METERGATE_LISTEN": "0.0.0.0:1"})
    none = await _gateway(settings, None)
    assert (none.health, "none runs at http://127.0.0.1:1;" in none.detail) == (Health.OK, True)
    wanted = await _gateway(settings, "http://127.0.0.1:1/")
    assert (wanted.health, "METERGATE_URL" in wanted.remedy) == (Health.FAIL, True)
    not_ready = http("503 Service Unavailable", b'{"status":"not ready","reasons":["the journal is full"]}')
    for answer, health, said in (
        (http("200 OK", b'{"status":"ready"}'), Health.OK, "is ready"),
        (not_ready, Health.WARN, "the journal is full"),
        (http("404 Not Found", b""), Health.FAIL, "answered 404"),
    ):
        async with serving(answer) as feed:
            found = await _gateway(settings, str(feed.url).rpartition("/")[0])
        assert (found.health, said in found.detail + found.remedy) == (health, True), found


def test_it_says_what_was_configured_and_where() -> None:
    settings = load_settings(None, {})
    assert (len(settings.providers), len(settings.models)) == (1, 1)
    [one] = _configuration(settings, None, ())
    assert one.detail == (
        "1 provider, 1 model, listens on 127.0.0.1:8000; from the built-in default (no --config and no METERGATE_CONFIG)"
    )
    none = load_settings(None, {"METERGATE_PROVIDERS": "{}", "METERGATE_MODELS": "[]"})
    [one] = _configuration(none, Path("gates/one.yaml"), ())
    assert one.detail == "0 providers, 0 models, listens on 127.0.0.1:8000; from gates/one.yaml"


async def test_a_secret_that_is_not_there_is_one_finding_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))
    monkeypatch.setenv("THERE", "key")
    config = tmp_path / "metergate.yaml"
    config.write_text(
        "listen: 127.0.0.1:1\n"
        "admin_key: file:/nowhere/admin\n"
        "webhook: {url: 'https://localhost/hook', secret: 'env:HOOK'}\n"
        "providers:\n"
        "  one: {kind: openai, base_url: 'http://127.0.0.1:1/v1', api_key: 'env:NOWHERE'}\n"
        "  two: {kind: openai, base_url: 'http://127.0.0.1:1/v1', api_keys: ['env:THERE', 'env:GONE']}\n"
        "  three: {kind: openai, base_url: 'http://127.0.0.1:1/v1', api_key: 'env:THERE'}\n"
        "models: [{name: m, context_window: 9, routes: [{provider: one, model: m}]}]\n"
    )
    found = await examine(config)
    said = {check.detail for check in found if (check.name, check.health) == ("configuration", Health.FAIL)}
    assert said == {
        f"{config}:2: admin_key: cannot read the secret file /nowhere/admin: No such file or directory",
        f"{config}:3: webhook.secret: the environment variable HOOK is not set",
        f"{config}:5: providers.one.api_key: the environment variable NOWHERE is not set",
        f"{config}:6: providers.two.api_keys[1]: the environment variable GONE is not set",
    }
    names = [check.name for check in found]
    assert {"home", "gateway", "database", "redis", "webhook", "provider three", "model m", "gpu"} <= set(names)
    assert not {"provider one", "provider two"} & set(names), "without its key nobody asks a provider"
    assert all((check.remedy == "") is (check.health is Health.OK) for check in found)


@pytest.mark.parametrize("name, check", [("database_url", "database"), ("redis_url", "redis")])
async def test_a_store_whose_address_is_not_there_is_not_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, check: str
) -> None:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))
    config = tmp_path / "metergate.yaml"
    config.write_text(f"listen: 127.0.0.1:1\n{name}: env:NOWHERE\n")
    with pytest.raises(SettingsError, match="NOWHERE is not set"):
        load_settings(config)
    found = await examine(config)
    assert [each.detail for each in found if each.health is Health.FAIL] == [
        f"{config}:2: {name}: the environment variable NOWHERE is not set"
    ]
    assert check not in [each.name for each in found]


async def test_what_has_no_price_is_named_with_the_command_that_gives_it_one(database_url: str, tmp_path: Path) -> None:
    config = tmp_path / "metergate.yaml"
    config.write_text(
        f"database_url: {database_url}\n"
        "providers:\n"
        "  here: {kind: openai, base_url: 'http://127.0.0.1:1/v1', price_as: list}\n"
        "  there: {kind: openai, base_url: 'http://127.0.0.1:1/v1'}\n"
        "models:\n"
        "  - {name: a, routes: [{provider: here, model: priced}, {provider: there, model: half}]}\n"
        "  - {name: b, routes: [{provider: there, model: none}, {provider: there, model: half}]}\n"
    )
    settings = load_settings(config, {})

    async def post(*drafts: tuple[str, str, str]) -> None:
        engine = open_database(database_url)
        try:
            async with engine.begin() as connection:
                await publish_prices(connection, [PriceDraft(*each, "USD", "1", EARLIEST_US) for each in drafts])
        finally:
            await engine.dispose()

    await post(("list", "priced", "input"), ("list", "priced", "output"), ("there", "half", "output"))
    found = await prices(settings)
    assert found.health is Health.WARN
    assert found.detail.startswith("no price in force for there/half, there/none: ")
    assert "`metergate price post there half input AMOUNT CURRENCY`" in found.remedy
    await post(("there", "half", "input"), ("there", "none", "request"))
    assert await prices(settings) == ok("prices", "3 routes are in version 2 of the price book")
