"""Rate feeds over the admin API: fetched now, each file taken whole or refused with its reason."""

from __future__ import annotations

import pytest

from tests.gateway.admin.conftest import Gateway, Operator
from tests.gateway.rates.server import good, http, serving


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


async def test_an_operator_fetches_now_and_hears_what_came_of_it(gateway: Gateway, operator: Operator) -> None:
    async with serving(http("200 OK", good()), http("200 OK", good()), http("404 Not Found", b"")) as feed:
        gateway.settings.rates.feeds[:] = [feed]
        first = (await operator.ask("POST", "/rates/fetch", {}))["data"]
        assert [(each["feed"], each["added"], each["refused"]) for each in first] == [("f", 1, None)]
        assert gateway.catalog.snapshot.books.rates.rows[0].source == "feed f"
        await operator.ask("POST", "/rates/fetch", {"feed": "f"})
        (third,) = (await operator.ask("POST", "/rates/fetch", {"feed": "f"}))["data"]
        assert (third["added"], third["refused"]) == (0, "f: answered with status 404")
    await operator.post("/rates/fetch", {"feed": "nobody"}, status=404)
    gateway.settings.rates.feeds.clear()
    assert (await operator.refused("/rates/fetch", {}, status=409))[0] == "feed"
