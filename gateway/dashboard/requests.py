"""Single requests, and one of them with its whole arithmetic: tokens x price row x rate row."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Final

from litestar import Controller, Response, get
from litestar.params import FromPath

from gateway.dashboard.app import Seen
from gateway.dashboard.inside import Json

UNIT: Final = {"mtok": 1_000_000}
STATUSES: Final = ("completed", "incomplete", "cancelled", "failed", "lost")
PER_PAGE: Final = 50


class RequestsController(Controller):
    path = "/requests"

    @get("/", include_in_schema=False)
    async def index(self, visit: Seen) -> Response[str]:
        query = visit.look.query
        names = ("team_id", "key_id", "model", "provider", "status", "unpriced", "negative_margin")
        filters = {name: query[name] for name in names if query.get(name)} | dict(visit.team)
        asked = {**visit.range.bounds, **filters, "cursor": query.get("cursor"), "limit": PER_PAGE}
        page = await visit.api.get("/usage/requests", asked)
        more = page["next_cursor"]
        return visit.page(
            "request_rows" if query.get("cursor") and "part" in query else "requests",
            rows=page["data"],
            names=visit.names,
            filters=filters,
            statuses=STATUSES,
            more=visit.link("/requests", **{**filters, "cursor": more, "part": "rows"}) if more else None,
            next_page=visit.link("/requests", **{**filters, "cursor": more}) if more else None,
        )

    @get("/{request_id:str}", include_in_schema=False)
    async def one(self, request_id: FromPath[str], visit: Seen) -> Response[str]:
        row = await visit.api.get(f"/usage/requests/{request_id}")
        prices = {price["id"]: price for price in row["price_rows"]}
        lines = [_worked(line, prices.get(line["price_row"]), row) for line in row["lines"]]
        corrections = []
        if visit.may("GET /admin/v1/usage/requests/{request_id}/corrections"):
            corrections = (await visit.api.get(f"/usage/requests/{request_id}/corrections"))["data"]
        return visit.page("request", row=row, lines=lines, names=visit.names, corrections=corrections)


def _worked(line: Json, price: Json | None, row: Json) -> Json:
    """A line with the factors behind its amounts; `exact` says whether the product needed no rounding."""
    if price is None or line["list"] is None:
        return {"line": line, "price": price, "factors": [], "exact": True}
    unit = UNIT.get(price["unit"], 1)
    listed = Fraction(Decimal(price["amount"])) * line["quantity"] / unit
    multiplier = row["sell"]["multiplier"] if row["sell"] is not None else None
    if multiplier is not None:
        listed *= Fraction(Decimal(multiplier))
    factors = []
    for kind in ("settled", "policy", "reference"):
        amount = line[kind]
        if amount is None or amount["currency"] == price["currency"]:
            continue
        factors.append({"kind": kind, "amount": amount, "rate": _rate(kind, price["currency"], row)})
    exact = listed == Fraction(Decimal(line["list"]["amount"]))
    return {"line": line, "price": price, "unit": unit, "multiplier": multiplier, "factors": factors, "exact": exact}


def _rate(kind: str, base: str, row: Json) -> Json | None:
    """What leads from the price's currency to the settlement's for that amount: the terms, or a rate row."""
    terms = row["terms"]
    if kind == "settled" and terms is not None and terms["base"] == base and terms["rate"] is not None:
        return {"words": "terms", "id": terms["id"], "rate": terms["rate"], "bps": terms["bps"]}
    wanted = "reference" if kind == "settled" else kind
    for rate in row["rates"]:
        if rate["kind"] == wanted and rate["base"] == base:
            bps = terms["bps"] if kind == "settled" and terms is not None else None
            return {"words": "rate", "id": rate["id"], "rate": rate["rate"], "bps": bps}
    return None
