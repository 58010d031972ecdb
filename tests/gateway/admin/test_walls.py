"""What holds for every admin route, tried on every route there is."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import litestar
import pytest
from litestar.routes import HTTPRoute
from sqlalchemy import text

from gateway.admin.paging import encode_cursor
from tests.gateway.admin.conftest import ADMIN_KEY, Gateway, Operator


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


BODIES = {"POST", "PATCH", "PUT"}


def routes(app: litestar.Litestar) -> list[tuple[str, str]]:
    """Each (method, path) under /admin, with an id in the place of every path parameter."""
    found: list[tuple[str, str]] = [
        (str(method), re.sub(r"\{[^}]*:int\}", "1", re.sub(r"\{[^}]*:str\}", "nobody", route.path)))
        for route in app.routes
        if isinstance(route, HTTPRoute) and route.path.startswith("/admin/")
        for method in sorted(route.methods)
        if method != "OPTIONS"
    ]
    assert len(found) >= 25
    return found


async def test_rule_29_every_route_is_closed_without_the_admin_key(
    app: litestar.Litestar, client: httpx.AsyncClient, operator: Operator
) -> None:
    team_key = (await operator.post("/keys", {"team_id": await operator.team(), "name": "ci"}))["key"]
    wrong = [
        {},
        {"authorization": f"Bearer {ADMIN_KEY[:-1]}"},
        {"authorization": f"Bearer {ADMIN_KEY}x"},
        {"authorization": f"Basic {ADMIN_KEY}"},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {team_key}"},
        {"x-api-key": team_key},
        {"x-api-key": "\xff"},
    ]
    for method, path in routes(app):
        for headers in wrong:
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = await client.request(method, path, headers=encoded, json={})
            assert answer.status_code == 401, f"{method} {path} with {headers}: {answer.status_code}"
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert answer.headers["content-type"] == "application/json"


async def test_the_admin_key_also_comes_as_x_api_key(client: httpx.AsyncClient) -> None:
    answer = await client.get("/admin/v1/teams", headers={"x-api-key": ADMIN_KEY})
    assert answer.status_code == 200


async def test_an_unknown_query_parameter_is_a_422_on_every_route(app: litestar.Litestar, operator: Operator) -> None:
    for method, path in routes(app):
        answer = await operator.ask(method, path.removeprefix("/admin/v1") + "?teem=x", {}, status=422)
        assert answer["error"]["param"] == "teem"
        assert answer["error"]["message"].startswith("teem: unknown query parameter; known: ")


async def test_an_unknown_field_is_a_422_on_every_route_that_takes_a_body(
    app: litestar.Litestar, operator: Operator
) -> None:
    tried = 0
    for method, path in routes(app):
        if method in BODIES and not path.endswith(("/revoke", "/end")):
            answer = await operator.ask(method, path.removeprefix("/admin/v1"), {"colour": "red"}, status=422)
            assert answer["error"]["param"] == "colour", f"{method} {path}: {answer}"
            assert answer["error"]["message"] == "colour: unknown field"
            tried += 1
    assert tried >= 9


async def test_a_body_that_is_no_json_object_is_refused_on_every_route_that_takes_one(
    app: litestar.Litestar, operator: Operator
) -> None:
    headers = {"authorization": operator.authorization, "content-type": "application/json"}
    for method, path in routes(app):
        if method in BODIES and not path.endswith(
            ("/revoke", "/end", "/rotate", "/issue", "/discard", "/publish", "/fetch")
        ):
            for body, status in (
                (b"{", 400),
                (b"[]", 422),
                (b"", 422),
                (b'"x"', 422),
                (b"{}" if method == "POST" else b"3", 422),
            ):
                answer = await operator.client.request(method, path, content=body, headers=headers)
                assert answer.status_code == status, f"{method} {path} {body!r}: {answer.status_code} {answer.text}"
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_rule_31_deep_json_is_refused_without_a_traceback_on_every_route(
    app: litestar.Litestar, operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"authorization": operator.authorization, "content-type": "application/json"}
    deep = b"[" * 5000 + b"]" * 5000
    tried = 0
    for method, path in routes(app):
        if method in BODIES:
            for body in (b"[" * 100_000, deep, b'{"name":' + deep + b"}", b'{"a":' * 5000 + b"1" + b"}" * 5000):
                answer = await operator.client.request(method, path, content=body, headers=headers)
                assert 400 <= answer.status_code < 500, f"{method} {path} {body[:9]!r}: {answer.text}"
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
                tried += answer.json()["error"]["message"].endswith("it is nested too deeply")
    assert tried >= 20
    assert not [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"]


async def test_rule_33_page_sizes_are_bounded_and_cursors_are_checked_on_every_list(
    app: litestar.Litestar, operator: Operator
) -> None:
    lists = [
        path
        for method, path in routes(app)
        if method == "GET"
        and path.rpartition("/")[2]
        not in {"nobody", "1", "routes", "diff", "explain", "drift", "focus", "statements", "break-even", "check"}
        and not path.endswith(("/corrections", "/me"))
    ]
    assert len(lists) >= 9
    for path in lists:
        path = path.removeprefix("/admin/v1")
        for limit in ("0", "-1", "1001", "x", "9999999999999999999999"):
            answer = await operator.get(f"{path}?limit={limit}", status=422)
            assert answer["error"]["param"] == "limit", f"{path} {limit}: {answer}"
        for cursor in ("x", "'; DROP TABLE teams; --", "gA", "%00"):
            answer = await operator.get(f"{path}?cursor={cursor}", status=422)
            assert answer["error"]["param"] == "cursor", f"{path} {cursor}: {answer}"
        nobodys = "/nobody" in path or "/1/" in path
        answer = await operator.get(f"{path}?limit=1", status=404 if nobodys else 200)
        assert nobodys or answer["data"] is not None
        answer = await operator.get(f"{path}?limit=1&limit=2", status=422)
        assert answer["error"]["message"] == "limit: is given more than once"


async def test_rule_29_values_are_data_and_never_sql(operator: Operator) -> None:
    nasty = "x' OR '1'='1"
    assert (await operator.get("/keys", team_id=nasty))["data"] == []
    assert (await operator.get("/prices", provider="%"))["data"] == []
    assert (await operator.get(f"/teams/{nasty}", status=404))["error"]["code"] == "not_found"


async def test_a_path_parameter_that_is_no_number_or_too_large_is_a_404(operator: Operator) -> None:
    await operator.get("/budgets/99999999999999999999999999", status=404)
    await operator.ask("POST", "/budgets/99999999999999999999999999/end", {}, status=404)
    await operator.get("/usage/requests/not-a-request-id", status=404)


async def test_a_nul_character_is_refused_wherever_it_comes(operator: Operator) -> None:
    assert (await operator.get("/keys/%00", status=422))["error"]["message"] == "key_id: has a NUL character"
    assert (await operator.get("/prices?provider=a%00", status=422))["error"]["param"] == "provider"
    for cursor in (encode_cursor("\x00"), encode_cursor((1, "\x00")), encode_cursor(2**63), encode_cursor(-1)):
        for path in ("/teams", "/keys", "/prices"):
            assert (await operator.get(path, cursor=cursor, status=422))["error"]["param"] == "cursor"


class TestWithoutTheDatabase:
    @pytest.fixture
    def database_url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'unmigrated.db'}"

    async def test_a_database_that_cannot_be_used_is_a_503_that_says_nothing_was_changed(
        self, gateway: Gateway, operator: Operator
    ) -> None:
        answer = await operator.get("/teams", status=503)
        assert answer["error"]["message"] == "The database cannot be reached; nothing was changed. Try again."
        body = {"name": "search", "settlement_currency": "CNY"}
        assert (await operator.post("/teams", body, status=503))["error"]["code"] == "database_unavailable"
        assert (await operator.get("/routes"))["data"][0]["priced"] is None


async def test_a_write_that_fails_half_way_leaves_nothing(gateway: Gateway, operator: Operator) -> None:
    async with gateway.database.connect() as connection:
        before = await connection.scalar(text("SELECT version FROM catalog_version"))
    await operator.refused(
        "/budgets", {"scope": "team", "scope_id": "t", "amount": "1", "currency": "CNY", "period": "day"}
    )
    async with gateway.database.connect() as connection:
        assert await connection.scalar(text("SELECT version FROM catalog_version")) == before
