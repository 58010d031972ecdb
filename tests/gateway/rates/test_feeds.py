"""A rate feed over a real socket: what the other side does wrong is named, counted, and changes nothing."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.books import load_books
from gateway.metrics import Metrics
from gateway.rates import fetch as fetching
from gateway.rates.keeper import RateKeeper
from gateway.settings import RateFeedSettings, RateSettings, SettingsError, load_settings
from tests.gateway.rates.server import good, http, serving


async def rates(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return [row.source for row in (await load_books(connection)).rates.rows]


def counted(metrics: Metrics, result: str) -> float | None:
    return metrics.registry.get_sample_value("metergate_rate_fetches_total", {"feed": "f", "result": result})


def age(metrics: Metrics) -> float:
    value = metrics.registry.get_sample_value("metergate_rate_feed_age_seconds", {"feed": "f"})
    assert value is not None
    return value


async def test_a_feed_is_taken_and_its_age_is_told(database: AsyncEngine) -> None:
    metrics = Metrics()
    async with serving(http("200 OK", good()), http("200 OK", good("9.9"))) as feed:
        keeper = RateKeeper(database, metrics, RateSettings(feeds=[feed]))
        assert age(metrics) == float("inf")
        await keeper.round()
        assert (await rates(database), counted(metrics, "taken")) == (["feed f"], 1)
        assert 0 <= age(metrics) < 60
        await keeper.round()
    assert (await rates(database), counted(metrics, "refused")) == (["feed f"], 1), "nine times as much is refused"


BOMB = gzip.compress(b"0" * (fetching.MOST_BYTES + 1))


@pytest.mark.parametrize(
    ("answer", "result", "why"),
    [
        (http("302 Found", b"", "location: /rates2"), "failed", "status 302; redirects are not followed"),
        (http("500 Oops", b"secret"), "failed", "status 500"),
        (http("200 OK", b"x" * 10)[:-5], "failed", "RemoteProtocolError"),
        (b"no http at all\r\n\r\n", "failed", "RemoteProtocolError"),
        (b"", "failed", "RemoteProtocolError"),
        (None, "failed", "no whole answer within 0.5 s"),
        (http("200 OK", BOMB, "content-encoding: gzip"), "failed", "an encoding that was not asked for"),
        (http("200 OK", b" " * (fetching.MOST_BYTES + 1)), "failed", "larger than 8388608 bytes"),
        (http("200 OK", b"\xff\xfe{}"), "failed", "no UTF-8"),
        (http("200 OK", b"<html>Login</html>"), "refused", "no object of base"),
        (http("200 OK", b'{"base":"EUR","rates":{"USD":1}}'), "refused", "not dated"),
    ],
)
async def test_rule_06_a_feed_that_fails_is_counted_and_changes_nothing(
    sqlite_database: AsyncEngine,
    caplog: pytest.LogCaptureFixture,
    answer: bytes | None,
    result: str,
    why: str,
) -> None:
    metrics = Metrics()
    async with serving(answer) as feed:
        if answer is None:
            feed = RateFeedSettings(
                **{name: getattr(feed, name) for name in feed.__struct_fields__} | {"timeout_s": 0.5}
            )
        await RateKeeper(sqlite_database, metrics, RateSettings(feeds=[feed])).round()
    assert (await rates(sqlite_database), counted(metrics, result)) == ([], 1)
    assert why in caplog.text
    assert "secret" not in caplog.text, "what the other side says in an error is not repeated"


async def test_rule_30_an_address_inside_is_refused_unless_its_network_is_named(
    sqlite_database: AsyncEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(http("200 OK", good())) as feed:
        assert feed.url is not None
        for url in (feed.url, feed.url.replace("localhost", "127.0.0.1"), "http://169.254.169.254/latest/meta-data"):
            other = RateFeedSettings(name="f", format="json", url=url, networks=["10.0.0.0/8"])
            await RateKeeper(sqlite_database, Metrics(), RateSettings(feeds=[other])).round()
    assert caplog.text.count("which is no public address") == 3
    assert await rates(sqlite_database) == []


async def test_rounds_begin_by_themselves_and_stop_at_once(database: AsyncEngine) -> None:
    async with serving(http("200 OK", good())) as feed:
        keeper = RateKeeper(database, Metrics(), RateSettings(feeds=[feed]), first_s=0.01)
        keeper.start()
        async with asyncio.timeout(20):
            while not await rates(database):
                await asyncio.sleep(0.02)
        await keeper.stop()


@pytest.mark.parametrize(
    ("feed", "why"),
    [
        ("{name: a, format: json}", "lacks `url`"),
        ("{name: a, format: ecb, url: 'ftp://x/y'}", "https:// address"),
        ("{name: a, format: ecb, url: 'http://x/y'}", "http:// is for feeds"),
        ("{name: a, format: ecb, url: 'https://u:p@x/y'}", "without user"),
        ("{name: a, format: ecb, currencies: [USDX]}", "ISO 4217"),
        ("{name: a, format: ecb, networks: [here]}", "no IP address or network"),
        ("{name: a, format: xml}", "format"),
        ("{name: a, format: ecb}, {name: a, format: ecb}", "two feeds"),
    ],
)
def test_a_feed_that_cannot_be_is_refused_by_its_setting(tmp_path: Path, feed: str, why: str) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text(f"rates: {{feeds: [{feed}]}}\n")
    with pytest.raises(SettingsError, match=why):
        load_settings(config, {})
