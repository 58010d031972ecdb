"""What `doctor` says of the parts that no other test starts."""

from __future__ import annotations

import pytest

from gateway.doctor import Health, _webhook
from gateway.secret import Secret
from gateway.settings import WebhookSettings


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
