"""Prices, rates and terms: what holds, what held, who changed it; and what is not priced."""

from __future__ import annotations

from typing import Any, Final

from litestar import Controller, Request, Response, get, post

from billing.times import SECOND_US, format_time, now_us
from billing.usage import TokenClass
from gateway.dashboard.app import Seen, read_form, whole
from gateway.dashboard.inside import Json, Refused

CHANGES: Final = frozenset({"/prices", "/price-books", "/rates", "/terms", "/sell-prices"})
RECENT: Final = 12
PRICE_FIELDS: Final = (
    "provider",
    "model",
    "token_class",
    "currency",
    "amount",
    "effective_from",
    "source",
    "unit",
    "service_tier",
    "processing",
)
UNITS: Final = {"mtok": "million tokens", "request": "request", "second": "second", "image": "image", "hour": "hour"}
"""A price's unit as people say it."""


class PricesController(Controller):
    path = "/prices"

    @get("/", include_in_schema=False)
    async def index(self, visit: Seen) -> Response[str]:
        query = visit.look.query
        filters = {name: query.get(name) for name in ("provider", "model")}
        rows, whole = await visit.api.every("/prices", filters)
        rates, _ = await visit.api.every("/rates")
        terms, _ = await visit.api.every("/terms")
        books, _ = await visit.api.every("/price-books")
        log = (await visit.api.get("/audit", {"limit": 200}))["data"]
        routes = (await visit.api.get("/routes"))["data"]
        now = format_time(now_us())
        history = query.get("history") == "yes"
        teams = {team.id: team.name for team in visit.services.catalog.snapshot.teams.values()}
        return visit.page(
            "prices",
            rows=rows if history else standing(rows, now),
            whole=whole,
            history=history,
            filters=filters,
            rates=sorted(rates, key=lambda rate: rate["effective_from"], reverse=True),
            terms=list(reversed(terms)),
            books=list(reversed(books))[:RECENT],
            changes=[entry for entry in log if "/" + entry["target"].split("/")[1] in CHANGES][:RECENT],
            unpriced=[route for route in routes if route["priced"] is False],
            classes=[str(each) for each in TokenClass],
            units=UNITS,
            lists=sorted({each.price_list for each in visit.services.router.providers.values()}),
            providers=sorted(visit.services.router.providers),
            teams=teams,
            now=now,
            moment=format_time(now_us() // SECOND_US * SECOND_US),
        )

    @get("/drift", include_in_schema=False)
    async def drift(self, visit: Seen) -> Response[str]:
        """The part of the page that may take a second the first time of a day: it is fetched after the rest is shown."""
        report = await visit.api.get("/prices/drift")
        fresh = sum(not row["known"] for row in report["data"])
        template = "price_drift_rows" if "part" in visit.look.query else "price_drift"
        return visit.page(template, rows=report["data"], fresh=fresh, sources=report["sources"])

    @post("/", include_in_schema=False)
    async def create(self, request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        body: Json = {name: form[name] for name in PRICE_FIELDS if name in form}
        if "min_input_tokens" in form:
            body["min_input_tokens"] = whole(form["min_input_tokens"])
        if form.get("supersede") == "yes":
            body["supersede"] = True
        return await _posted(visit, "/prices", body)

    @post("/rates", include_in_schema=False)
    async def rate(self, request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        names = ("base", "quote", "kind", "rate", "source", "effective_from")
        return await _posted(visit, "/rates", {name: form[name] for name in names if name in form})

    @post("/terms", include_in_schema=False)
    async def term(self, request: Request[Any, Any, Any], visit: Seen) -> Response[Any]:
        form = await read_form(request)
        names = ("team_id", "provider", "base", "quote", "policy", "rate", "effective_from")
        body: Json = {name: form[name] for name in names if name in form}
        if "bps" in form:
            body["bps"] = whole(form["bps"])
        return await _posted(visit, "/terms", body)


def standing(rows: list[Json], now: str) -> list[Json]:
    """The rows that price a request now: of each key the last to have begun."""
    found: dict[tuple[str, ...], Json] = {}
    for row in sorted(rows, key=lambda row: row["effective_from"]):
        if row["effective_from"] <= now:
            names = ("provider", "model", "token_class", "service_tier", "processing", "min_input_tokens")
            found[tuple(str(row[name]) for name in names)] = row
    return sorted(found.values(), key=lambda row: (row["provider"], row["model"], row["token_class"]))


async def _posted(visit: Seen, path: str, body: Json) -> Response[Any]:
    try:
        await visit.api.post(path, body)
    except Refused as refused:
        return visit.problem(refused)
    return visit.back("/prices")
