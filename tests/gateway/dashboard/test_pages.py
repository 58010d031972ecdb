"""What every page holds to: who may see it, what it lets nobody do, and that its figures are the ledger's."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import html
import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import httpx
import pytest
from litestar.routes import HTTPRoute

from billing.database import open_database
from billing.watermarks import raise_watermark
from gateway.admin.roles import RULES, Role
from gateway.dashboard.app import create_dashboard
from gateway.dashboard.language import Speech, choose
from gateway.dashboard.pages import PAGES as CONTROLLERS
from gateway.dashboard.ranges import read_range
from gateway.dashboard.security import way_back
from gateway.dashboard.visit import FOLDER, PAGES
from tests.billing.helpers import at
from tests.e2e.product import Product
from tests.gateway.dashboard.conftest import Browser, Visitor
from tests.gateway.dashboard.world import ADMIN_KEY, NASTY, World

OPEN = {"/files/{name}", "/sign-in", "/show", "/oidc/start", "/oidc"}
"""What needs no session: the style, the sign-in in both ways, and the cookies of language and theme."""


def routes(world: World) -> list[tuple[str, str]]:
    """Every (method, path below /dashboard), with things of the team ads in the place of parameters."""
    app = create_dashboard(cast(Any, None), cast(Any, None), cast(Any, None), CONTROLLERS)
    values = {"team_id": world.ads, "key_id": world.keys["copy"], "request_id": world.request, "token_id": "tok_x"}
    found = []
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        path = route.path_format.removeprefix("/dashboard")
        if path in OPEN:
            continue
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", value)
        path = re.sub(r"\{[^}]*\}", "1", path)
        found += [(str(method), path) for method in sorted(route.methods) if method in ("GET", "POST")]
    assert len(found) >= 30
    return found


def test_every_page_sends_strangers_to_the_sign_in_and_does_nothing_for_them(visitor: Visitor, world: World) -> None:
    stranger = visitor()
    stranger.client.cookies.set("metergate_session", "x" * 43, path="/dashboard")
    for method, path in routes(world):
        answer = stranger.client.request(
            method, f"/dashboard{path}", data={"csrf": "0" * 64} if method == "POST" else None
        )
        if method == "GET":
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/dashboard/sign-in?back=%2Fdashboard")
        else:
            assert answer.status_code == 401, path
    stranger.sign_in("sk-mg-admin-wrong", status=401)
    stranger.sign_in("", status=401)


def test_no_form_is_taken_without_its_sessions_token_or_from_another_site(
    visitor: Visitor, world: World, owner: Browser
) -> None:
    other = visitor(ADMIN_KEY)
    for method, path in routes(world):
        if method != "POST":
            continue
        owner.post(path, csrf=False, status=403)
        owner.post(path, {"csrf": other.csrf}, csrf=False, status=403)
        owner.post(path, origin="https://evil.example", status=403)
        owner.post(path, status=403, sec_fetch_site="cross-site")
    before = owner.cookie
    answer = owner.client.post(
        "/dashboard/sign-in", data={"key": ADMIN_KEY}, headers={"origin": "https://evil.example"}
    )
    assert (answer.status_code, owner.cookie) == (403, before)
    assert world.keys["copy"] in owner.get(f"/teams/{world.ads}").text


def test_a_session_gets_a_new_cookie_at_every_sign_in_and_ends_with_what_opened_it(
    visitor: Visitor, owner: Browser
) -> None:
    planted = visitor()
    planted.client.cookies.set("metergate_session", "planted" * 6, path="/dashboard")
    answer = planted.sign_in(ADMIN_KEY)
    assert "planted" not in answer.headers["set-cookie"]
    for wanted in ("HttpOnly", "SameSite=strict", "Path=/dashboard"):
        assert wanted.lower() in answer.headers["set-cookie"].lower()

    first = owner.cookie
    assert first is not None
    owner.sign_in(ADMIN_KEY)
    assert owner.cookie not in (None, first)
    thief = visitor()
    thief.client.cookies.set("metergate_session", first, path="/dashboard")
    thief.get("", status=303)

    made = owner.post("/access", {"name": "short", "role": "viewer"}, status=200).text
    token = re.search(r'id="secret">(sk-mg-op-[^<]+)<', made)
    identifier = re.search(r">short</th>.*?/access/(tok_\w+)/revoke", made, re.DOTALL)
    assert token is not None and identifier is not None
    guest = visitor(token[1])
    assert "short" in guest.get("").text
    owner.post(f"/access/{identifier[1]}/revoke")
    guest.get("", status=303)
    assert token[1] not in owner.get("/access").text

    owner.post("/sign-out")
    owner.get("", status=303)


def test_no_page_can_be_framed_or_run_what_is_not_ours(world: World, owner: Browser) -> None:
    for method, path in [*routes(world), ("GET", "/sign-in"), ("GET", "/files/style.css"), ("GET", "/nowhere")]:
        if method != "GET":
            continue
        answer = owner.client.get(f"/dashboard{path}")
        if answer.status_code == 303:
            continue
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        if answer.headers["content-type"].startswith("text/html") and "statements/" not in path:
            assert answer.headers["x-frame-options"] == "DENY"
            assert re.search(r"<script(?![^>]*\ssrc=\"/dashboard/files/)", answer.text) is None, path
            assert re.search(r"<[^>]+\s(style|on\w+)=", answer.text) is None, path
            assert "http://" not in answer.text.replace("http://127.0.0.1", "") or path.startswith("/prices"), path


def test_the_api_s_description_is_open_framed_by_nobody_and_runs_nothing_of_others(visitor: Visitor) -> None:
    stranger = visitor().client
    for path, kind in (("/schema", "text/html"), ("/schema/openapi.json", "application/vnd.oai.openapi+json")):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
    page = stranger.get("/schema").text
    assert re.search(r"<script(?![^>]*\ssrc=\"/dashboard/files/)", page) is None
    assert re.search(r"<[^>]+\s(style|on\w+)=|https?://", page) is None
    for wrong, status in (("/schema/nothing", 404), ("/schema/../admin/v1/teams", 401)):
        assert stranger.get(wrong).status_code == status
    assert stranger.post("/schema").status_code == 405


@pytest.mark.parametrize(
    "target",
    [
        "https://evil.example",
        "//evil.example",
        "/\\evil.example",
        "/dashboard/../admin",
        "/dashboard@evil.example",
        "/dashboardevil",
        "javascript:alert(1)",
        "/dashboard/\r\nset-cookie: x=1",
        "/v1/key",
        " /dashboard",
    ],
)
def test_the_way_back_never_leaves_the_dashboard(visitor: Visitor, target: str) -> None:
    assert way_back(target) == "/dashboard"
    guest = visitor()
    assert guest.sign_in(ADMIN_KEY, back=target).headers["location"] == "/dashboard"
    answer = guest.client.get("/dashboard/show", params={"language": "zh", "back": target})
    assert answer.headers["location"] == "/dashboard"


def test_the_way_back_goes_where_it_should_inside() -> None:
    for inside in (
        "/dashboard",
        "/dashboard/teams/team_x?range=30d&tz=Asia%2FShanghai",
        "/dashboard/requests?status=failed",
    ):
        assert way_back(inside) == inside


def test_rule_29_names_are_text_on_every_page_whatever_they_look_like(world: World, owner: Browser) -> None:
    owner.post(f"/teams/{world.ads}/keys", {"name": NASTY}, status=200)
    shown = 0
    for method, path in routes(world):
        if method == "GET":
            answer = owner.client.get(f"/dashboard{path}")
            assert "<img src=x" not in answer.text, path
            shown += html.escape(NASTY, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in answer.text
    assert shown >= 3


def ledger_of(product: Product) -> httpx.Client:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    return httpx.Client(base_url=f"{product.url}/admin/v1", headers=headers, trust_env=False, timeout=30)


MONTHS = ("Asia/Shanghai", "Asia/Kolkata", "UTC", "America/New_York")


@pytest.mark.parametrize("timezone", MONTHS)
def test_rule_10_every_page_shows_the_ledgers_sums_for_a_month_of_any_zone(
    product: Product, world: World, owner: Browser, timezone: str
) -> None:
    middle = datetime.now(ZoneInfo(timezone)).date() - timedelta(days=15)
    first = middle.replace(day=1)
    last = (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    chosen = read_range({"from": f"{first}", "to": f"{last}", "tz": timezone}, "UTC")
    start = datetime.fromtimestamp(chosen.start_us / 1_000_000, UTC).astimezone(ZoneInfo(timezone))
    assert (start.date(), start.hour, start.minute) == (first, 0, 0)
    rows: list[dict[str, Any]] = []
    with ledger_of(product) as admin:
        query: dict[str, Any] = {**chosen.bounds, "limit": 500}
        while True:
            page = admin.get("/usage/requests", params=query).json()
            rows += page["data"]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
    assert len(rows) > 50
    speech = Speech("en", timezone)
    zone = f"from={first}&to={last}&tz={timezone}"
    pages = {path: owner.get(f"{path}?{zone}").text for path in ("", "/explore")}
    exported = owner.get(f"/explore/export.csv?group=key&{zone}").text.splitlines()
    header = exported[0].split(",")
    focus = list(csv.DictReader(io.StringIO(owner.get(f"/explore/focus.csv?{zone}").text)))
    for currency in ("CNY", "USD"):
        ledger = sum(
            (
                Decimal(row["settled"]["amount"])
                for row in rows
                if row["settled"] and row["settled"]["currency"] == currency
            ),
            Decimal(0),
        )
        shown = speech.money({"amount": str(ledger.normalize()), "currency": currency})
        for path, text in pages.items():
            assert shown in text, f"{path} {timezone}: {shown}"
        billed = [Decimal(row["BilledCost"]) for row in focus if row["BillingCurrency"] == currency]
        assert sum(billed) == ledger
        column = header.index(f"settled {currency}")
        assert sum(Decimal(line.split(",")[column]) for line in exported[1:]) == ledger
    assert f">{speech.number(len(rows))}<" in pages[""]
    at, requests, errors = json.loads(owner.get(f"/explore/series.json?{zone}").text)["data"]
    assert len(at) == (last - first).days + 1 == len(requests) == len(errors), "a day without requests is a day"
    assert (sum(requests), at[0] * 1_000_000) == (len(rows), chosen.start_us)


def test_a_requests_page_has_its_whole_arithmetic(product: Product, world: World, owner: Browser) -> None:
    with ledger_of(product) as admin:
        row = admin.get(f"/usage/requests/{world.request}").json()
    page = html.unescape(owner.get(f"/requests/{world.request}").text)
    speech = Speech("en", "UTC")
    for line in row["lines"]:
        price = next(price for price in row["price_rows"] if price["id"] == line["price_row"])
        assert speech.number(line["quantity"]) in page
        assert f"× {price['amount']} USD / 1,000,000" in page
        assert f"price row {price['id']}, book {price['book_version']}" in page
        for kind in ("list", "settled", "policy", "reference"):
            assert speech.money(line[kind]) in page
    assert "× 7.3 = " in page
    assert {rate["kind"] for rate in row["rates"]} == {"policy", "reference"}
    for rate in row["rates"]:
        assert f"rate {rate['id']}" in page


def test_a_team_admin_sees_their_team_alone_on_every_page(visitor: Visitor, world: World) -> None:
    admin = visitor(world.tokens["team_admin"])
    for method, path in routes(world):
        if path in ("/sign-out", "/playground/stream"):
            continue
        form = {"csrf": admin.csrf, "team_id": world.ads, "name": "x", "month": "2026-01"}
        answer = admin.client.request(method, f"/dashboard{path}", data=form if method == "POST" else None)
        assert answer.status_code < 500
        assert world.keys["copy"] in path or world.keys["copy"] not in answer.text, path
        if "ads" in path or world.ads in path:
            assert answer.status_code in (403, 404), f"{method} {path}"
        if method == "POST":
            assert answer.status_code in (403, 404, 422), f"{method} {path}: {answer.status_code}"
    for group in ("team", "key", "model", "provider"):
        asked = admin.get(f"/explore?team_id={world.ads}&key_id={world.keys['copy']}&group={group}").text
        assert "team: ads" not in asked and "key: copy" not in asked
    assert "may not do this" in admin.get("/engine", status=403).text
    own = admin.get(f"/teams/{world.search}").text
    assert world.keys["assistant"] in own and "Margin" not in admin.get("").text
    for text in (own, admin.get("").text):
        assert all(amount in text for amount in (">CN¥40.00<", ">CN¥5.00<")), "the budgets over the team and its key"
        assert ">$20.00<" not in text
    body = {"key_id": world.keys["copy"], "model": "deepseek-chat", "messages": [{"role": "user", "content": "x"}]}
    answer = admin.client.post("/dashboard/playground/stream", json=body, headers={"x-csrf-token": admin.csrf})
    assert answer.status_code == 403


def test_the_playground_speaks_for_a_key_only_from_where_the_key_may_be_used(
    product: Product, world: World, owner: Browser
) -> None:
    ask = {"model": "deepseek-chat", "messages": [{"role": "user", "content": "x"}]}
    with ledger_of(product) as admin:
        for allowed, status in (("203.0.113.0/24", 403), ("127.0.0.0/8", 200)):
            body = {"team_id": world.ads, "name": f"from {allowed}", "allowed_ips": [allowed]}
            key_id = admin.post("/keys", json=body).json()["id"]
            headers = {"x-csrf-token": owner.csrf, "x-forwarded-for": "203.0.113.9"}
            answer = owner.client.post("/dashboard/playground/stream", json={**ask, "key_id": key_id}, headers=headers)
            assert answer.status_code == status, answer.text[-400:]


def test_the_books_are_complete_up_to_what_journals_still_bring(world: World, owner: Browser) -> None:
    async def enter(journal: str, moment: str, complete: bool) -> None:
        database = open_database(world.database_url)
        async with database.begin() as connection:
            await raise_watermark(connection, journal, at(moment), complete=complete)
        await database.dispose()

    with ThreadPoolExecutor(1) as pool:  # whatever loop this thread has
        pool.submit(asyncio.run, enter("ended", "2001-02-03T00:00:00Z", complete=True)).result()
        assert "2001" not in owner.get("").text
        pool.submit(asyncio.run, enter("behind", "2002-02-03T00:00:00Z", complete=False)).result()
        assert "2002" in owner.get("").text
        pool.submit(asyncio.run, enter("behind", "2002-02-03T00:00:00Z", complete=True)).result()


def test_the_address_alone_leads_to_the_dashboard(visitor: Visitor) -> None:
    answer = visitor().client.get("/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard")


@pytest.mark.parametrize("role", ["billing", "operator", "viewer"])
def test_each_role_finds_the_pages_it_may_see_and_no_others(visitor: Visitor, world: World, role: str) -> None:
    member = visitor(world.tokens[role])
    start = member.get("").text
    for path, name, route in PAGES:
        allowed = RULES[route].allows(Role(role))
        assert (f">{name}</a>" in start) == allowed, name
        member.get(path, status=200 if allowed else 403)
    change = member.post(
        "/teams", {"name": f"of {role}", "settlement_currency": "EUR"}, status=303 if role == "operator" else 403
    )
    assert ("may not do this" in change.text) == (role != "operator")


def test_what_is_done_on_a_page_is_in_the_audit_log_under_the_persons_name(
    visitor: Visitor, product: Product, world: World
) -> None:
    operator = visitor(world.tokens["operator"])
    made = operator.post(f"/teams/{world.search}/keys", {"name": "from the page", "max_parallel": "3"}, status=200).text
    key = re.search(r'id="secret">(sk-mg-[^<]+)<', made)
    assert key is not None
    assert key[1] not in operator.get(f"/teams/{world.search}").text
    page = html.unescape(operator.get("/audit").text)
    assert '"name": "from the page"' in page and "the operator" in page
    assert key[1].rpartition("-")[2] not in page + product.text
    wrong = operator.post(f"/teams/{world.search}/keys", {"name": "x", "max_parallel": "many"}, status=422)
    assert "limits.max_parallel" in wrong.text


def test_statements_are_drafted_issued_and_printed_from_the_page(world: World, owner: Browser) -> None:
    def draft(month: str) -> str:
        owner.post("/statements", {"team_id": world.search, "month": month})
        page = owner.get(f"/statements?team_id={world.search}").text
        return str(max(int(each) for each in re.findall(rf"/statements/{world.search}/(\d+)/issue", page)))

    month = f"{datetime.now(UTC) - timedelta(days=15):%Y-%m}"
    used = draft(month)
    printed = owner.get(f"/statements/{world.search}/{used}/html")
    assert "script-src" not in printed.headers["content-security-policy"]
    assert month in printed.text
    assert owner.get(f"/statements/{world.search}/{used}/csv").text.count("\n") > 2
    owner.post(f"/statements/{world.search}/{used}/discard")
    running = draft(f"{datetime.now(UTC):%Y-%m}")
    refused = owner.post(f"/statements/{world.search}/{running}/issue", status=409)
    assert "Nothing was changed." in refused.text
    owner.post(f"/statements/{world.search}/{running}/discard")


def test_the_range_is_what_the_url_says_and_a_wrong_one_is_the_default(owner: Browser) -> None:
    page = owner.get("?from=2026-10-01&to=2026-10-31&tz=Asia/Kolkata").text
    assert 'value="2026-10-01"' in page and "<option selected>Asia/Kolkata" in page
    for wrong in ("from=x&to=y", "tz=Mars/Olympus", "range=for ever", "from=2026-10-31&to=2026-10-01", "tz=../etc"):
        assert '<option value="7d" selected>' in owner.get(f"?{wrong}").text


TEXT = re.compile(r"""_\((["'])(.*?)\1""")


def test_every_text_is_there_in_chinese() -> None:
    chinese = json.loads((FOLDER / "zh.json").read_text())
    texts = {found[2] for file in (FOLDER / "templates").iterdir() for found in TEXT.finditer(file.read_text())}
    texts |= {name for _, name, _ in PAGES} | set(Role)
    for file in FOLDER.glob("*.py"):
        texts |= {found[1] for found in re.finditer(r'\.say\(\s*"(.*?)"', file.read_text())}
    assert len(texts) > 250
    assert sorted(texts - set(chinese)) == []
    for english, translated in chinese.items():
        assert re.findall(r"\{\w+\}", english).sort() == re.findall(r"\{\w+\}", translated).sort()
        assert re.search(r"[\u4e00-\u9fff]", translated) is not None, english


def test_money_keeps_every_digit_in_both_languages() -> None:
    view = {"amount": "1234567.000000001", "currency": "CNY"}
    assert Speech("en", "UTC").money(view) == "CN¥1,234,567.000000001"
    assert Speech("zh", "UTC").money(view) == "¥1,234,567.000000001"
    assert Speech("en", "UTC").money({"amount": "5", "currency": "JPY"}) == "¥5"
    assert (choose(None, "zh-CN,en;q=0.8"), choose("en", "zh"), choose("xx", None)) == ("zh", "en", "en")


def test_what_is_vendored_is_what_was_vendored() -> None:
    lines = (FOLDER / "vendor" / "hashes.sha256").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split() for line in lines)}
    files = {file.name for file in (FOLDER / "vendor").iterdir() if file.suffix in (".js", ".css")}
    assert set(listed) == files
    for name, digest in listed.items():
        assert hashlib.sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest, name


@pytest.fixture(scope="module", autouse=True)
def _no_secret_in_the_log(product: Product, world: World) -> Iterator[None]:
    """Rule 27, over everything that the tests of this file did."""
    yield
    for secret in (ADMIN_KEY, *world.tokens.values()):
        assert secret not in product.text
    assert "Traceback" not in product.text
    assert Path(world.home).exists()
