"""What `doctor` says of the parts that no other test starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.doctor import Health, _configuration, _gateway, _webhook
from gateway.secret import Secret
from gateway.settings import WebhookSettings, load_settings
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


def test_one_provider_is_one() -> None:
    settings = load_settings(None, {})
    assert (len(settings.providers), len(settings.models)) == (1, 1)
    assert _configuration(settings).detail.startswith("1 provider, 1 model, listens on ")
    none = load_settings(None, {"METERGATE_PROVIDERS": "{}", "METERGATE_MODELS": "[]"})
    assert _configuration(none).detail.startswith("0 providers, 0 models, listens on ")
