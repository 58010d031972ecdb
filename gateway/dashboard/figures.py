"""The admin API's usage sums, as pages need them: added up over a range, per interval and per group. Nothing is rounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

from billing.money import Money
from billing.periods import intervals
from billing.times import format_time
from billing.views import saving_percent
from gateway.dashboard.charts import Bar, bars, ticks
from gateway.dashboard.inside import Json
from gateway.dashboard.visit import Visit, total, worth

MONEYS: Final = ("list", "settled", "policy", "reference", "cost", "margin")
COUNTS: Final = ("requests", "errors", "unpriced", "estimated", "negative_margin")
INPUT: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "audio_input", "image_input")
OUTPUT: Final = ("output", "audio_output", "image_output")


async def buckets(
    visit: Visit, *, group_by: str = "", interval: str | None = None, filters: Mapping[str, object] | None = None
) -> tuple[list[Json], bool]:
    """Sums of the visit's range, and whether they are all there."""
    return await visit.api.every("/usage", question(visit, group_by=group_by, interval=interval, filters=filters))


def question(
    visit: Visit, *, group_by: str = "", interval: str | None = None, filters: Mapping[str, object] | None = None
) -> dict[str, object]:
    """What to ask the admin API for the sums of the visit's range."""
    return {
        **visit.range.bounds,
        "timezone": visit.range.timezone,
        "interval": interval or visit.range.interval,
        "group_by": group_by,
        **(filters or {}),
        **visit.team,
    }


def add_up(found: Iterable[Json]) -> Json:
    """One sum of many, in the same shape."""
    rows = list(found)
    tokens: dict[str, int] = {}
    for row in rows:
        for name, count in row["tokens"].items():
            tokens[name] = tokens.get(name, 0) + count
    summed: Json = {name: sum(row[name] for row in rows) for name in COUNTS}
    summed |= {name: total([row[name] for row in rows]) for name in MONEYS}
    summed["margin_partial"] = any(row["margin_partial"] for row in rows)
    if summed["margin_partial"]:  # a sum that lacks requests and is zero says nothing
        summed["margin"] = [view for view in summed["margin"] if view["amount"] != "0"]
    summed["tokens"] = tokens
    summed["saved"] = difference(summed["policy"], summed["settled"])
    summed["saved_reference"] = difference(summed["reference"], summed["settled"])
    summed["saving_percent"] = _percent(summed["settled"], summed["policy"])
    summed["saving_reference_percent"] = _percent(summed["settled"], summed["reference"])
    return summed


def by_group(found: Iterable[Json], name: str) -> list[tuple[str, Json]]:
    """The sums of each value of a group, the dearest first."""
    parts: dict[str, list[Json]] = {}
    for row in found:
        parts.setdefault(row["group"][name], []).append(row)
    summed = [(value, add_up(rows)) for value, rows in parts.items()]
    return sorted(summed, key=lambda pair: (-_weight(pair[1]), -pair[1]["requests"], pair[0]))


def difference(more: list[Json], less: list[Json]) -> list[Json]:
    """more - less per currency that stands in both; a sum of nothing is no amount to compare with."""
    found = []
    for view in more:
        for other in less:
            if other["currency"] == view["currency"] and view["amount"] != "0":
                nano = (
                    Money.parse(view["amount"], view["currency"]).nano
                    - Money.parse(other["amount"], other["currency"]).nano
                )
                found.append({"amount": Money(view["currency"], nano).amount, "currency": view["currency"]})
    return found


def main_currency(summed: Json) -> str | None:
    """The currency in which most was settled: a chart has one axis."""
    found = max(summed["settled"], key=lambda view: Decimal(view["amount"]), default=None)
    return None if found is None else str(found["currency"])


def chart(visit: Visit, found: list[Json], what: str, currency: str | None) -> Json:
    """Bars of money, requests or tokens per interval; intervals without a request are drawn empty."""
    speech = visit.look.speech
    rows = {row["start"]: row for row in found}
    data = []
    for start in interval_starts(visit):
        row = rows.get(start)
        label = speech.label(start, visit.range.interval)
        parts, words = _parts(visit, row, what, currency)
        data.append(Bar(label, f"{speech.time(start)}: {words}", parts))
    axis = [speech.compact(each) for each in ticks(data)]
    titles = {"settled": "Settled", "requests": "Requests", "tokens": "Tokens"}
    title = f"{speech.say(titles[what])} · {currency}" if what == "settled" and currency else speech.say(titles[what])
    return {"svg": bars(data, title=title, axis=axis), "rows": [(bar.label, bar.words) for bar in data], "title": title}


def _parts(visit: Visit, row: Json | None, what: str, currency: str | None) -> tuple[tuple[Decimal, ...], str]:
    speech = visit.look.speech
    if what == "requests":
        errors, requests = (row["errors"], row["requests"]) if row else (0, 0)
        parts = (Decimal(requests - errors), Decimal(errors))
        return parts, speech.say("{requests} requests, {errors} errors", requests=requests, errors=errors)
    if what == "tokens":
        tokens = row["tokens"] if row else {}
        fresh = sum(tokens.get(name, 0) for name in INPUT if name != "cache_read")
        cached, out = tokens.get("cache_read", 0), sum(tokens.get(name, 0) for name in OUTPUT)
        words = speech.say("{fresh} input, {cached} cached, {out} output", fresh=fresh, cached=cached, out=out)
        return (Decimal(fresh), Decimal(cached), Decimal(out)), words
    amount = worth(row["settled"], currency) if row and currency else Decimal(0)
    return (amount,), speech.money({"amount": str(amount), "currency": currency}) if currency else "–"


def interval_starts(visit: Visit) -> list[str]:
    """The start of each interval of the range, as the API names it."""
    chosen = visit.range
    spans = intervals(chosen.interval, chosen.timezone, chosen.start_us, chosen.end_us)
    return [format_time(start) for start, _ in spans]


def _weight(summed: Json) -> Decimal:
    return max((Decimal(view["amount"]) for view in summed["settled"]), default=Decimal(0))


def _percent(settled: list[Json], other: list[Json]) -> str | None:
    if len(settled) != 1 or len(other) != 1 or settled[0]["currency"] != other[0]["currency"]:
        return None
    one, two = (Money.parse(view["amount"], view["currency"]).nano for view in (settled[0], other[0]))
    return saving_percent(one, two)
