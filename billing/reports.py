"""`GET /admin/v1/usage`: sums per hour, day or month of a named time zone, grouped, out of the rollups alone (but for tags)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.errors import InvalidQuery
from billing.money import NANO, format_scaled
from billing.periods import INTERVALS, intervals
from billing.reads import UsageFilters
from billing.records import MoneyView
from billing.rollup_reads import Sums, rollup_sums
from billing.tables import MONEY_COLUMNS, TOKEN_COLUMNS
from billing.tag_sums import is_tag, tag_sums
from billing.times import DAY_US, QUARTER_US, format_time, now_us

GROUPS: Final = {
    "team": "team_id",
    "key": "key_id",
    "model": "model",
    "provider": "provider",
    "provider_model": "provider_model",
}
MAX_BUCKETS: Final = 1000
MAX_RANGE_US: Final = 400 * DAY_US
FILTERS: Final = ("team_id", "key_id", "model", "provider")
_ROWS_PER_GROUP: Final = 16
_FIRST_SPANS: Final = 8
"""Intervals asked for at first where each may have many groups: they can fill a page."""
_MOST_SPANS: Final = 256
_COUNTS: Final = (
    "requests",
    "errors",
    "unpriced",
    "estimated",
    "negative_margin",
    *TOKEN_COLUMNS,
    "reasoning",
    *MONEY_COLUMNS,
)
_MONEY: Final = tuple(
    (label, Sums._fields.index(currency), _COUNTS.index(nano))
    for label, currency, nano in (
        ("list", "list_currency", "list_nano"),
        ("settled", "settlement_currency", "settled_nano"),
        ("policy", "settlement_currency", "policy_nano"),
        ("reference", "settlement_currency", "reference_nano"),
        ("cost", "cost_currency", "cost_nano"),
    )
)
"""Each money list but the margin's: where its currency and its sum stand."""
_MARGIN_OF: Final = tuple(_COUNTS.index(name) for name in ("settled_nano", "cost_nano", "margin_nano"))
_TOKENS_FROM: Final = _COUNTS.index(TOKEN_COLUMNS[0])
_TOKENS: Final = tuple(enumerate((*TOKEN_COLUMNS, "reasoning"), _TOKENS_FROM))
"""Where each class of tokens stands; before them stand the counts of requests."""

_Moneys: TypeAlias = list[MoneyView]


class UsageBucket(msgspec.Struct, frozen=True):
    """One interval and group. Token counts that are zero are left out; each money list has one entry per currency.

    `negative_margin` counts requests that cost more than they bring. A request whose margin is not known, for want of terms or
    of a rate, adds nothing to `margin`: `margin_partial` says that there were such, and a sum of nothing is left out.
    """

    start: str
    end: str
    group: dict[str, str]
    requests: int
    errors: int
    tokens: dict[str, int]
    unpriced: int
    estimated: int
    negative_margin: int
    list: _Moneys
    settled: _Moneys
    policy: _Moneys
    reference: _Moneys
    cost: _Moneys
    margin: _Moneys
    margin_partial: bool


class UsageBuckets(msgspec.Struct, frozen=True):
    """A page of buckets by time and group. Intervals without a request are left out."""

    data: list[UsageBucket]
    next_cursor: str | None
    as_of: str


@dataclass(frozen=True, slots=True)
class _Window:
    interval: str
    timezone: str
    start_us: int
    end_us: int
    columns: tuple[str, ...]


async def usage_buckets(
    connection: AsyncConnection,
    start_us: int,
    end_us: int,
    interval: str = "day",
    timezone: str = "UTC",
    group_by: Sequence[str] = (),
    filters: UsageFilters | None = None,
    cursor: str | None = None,
    limit: int = 200,
) -> UsageBuckets:
    """One page of buckets. Start and end must lie on a quarter-hour; the first and last interval are clipped to them.

    Raises `InvalidQuery` (with its field) or, for an unknown zone, `InvalidTime`. Money is summed within one currency only.
    """
    window = _check(start_us, end_us, interval, timezone, group_by, limit)
    filters = filters or UsageFilters()
    after = _decode_cursor(cursor, len(window.columns))
    spans = [span for span in intervals(interval, timezone, start_us, end_us) if after is None or span[0] >= after[0]]
    merged: dict[tuple[Any, ...], list[Sums]] = {}
    where = {name: value for name in FILTERS if (value := getattr(filters, name)) is not None}
    tagged = any(map(is_tag, window.columns))
    at, size = 0, _FIRST_SPANS if window.columns else _MOST_SPANS
    while at < len(spans):
        chunk = spans[at : at + size]
        at, size = at + size, min(4 * size, _MOST_SPANS)
        wanted = (limit + 1 - len(merged)) * _ROWS_PER_GROUP
        if tagged:
            rows = await tag_sums(connection, chunk, _COUNTS, groups=window.columns, where=where, after=after)
        else:
            rows = await rollup_sums(
                connection, chunk, _COUNTS, groups=window.columns, where=where, after=after, limit=wanted
            )
        for row in rows:
            merged.setdefault((row.start_us, *row.group), []).append(row)
        cut = len(rows) == wanted and not tagged
        if cut:
            merged.popitem()  # perhaps cut in half by the query's limit; the next page has it whole
        if len(merged) > limit or cut:
            break
    else:
        return UsageBuckets(_buckets(merged, spans, group_by), None, format_time(now_us()))
    kept = dict(list(merged.items())[:limit])
    return UsageBuckets(_buckets(kept, spans, group_by), _encode_cursor(list(kept)[-1]), format_time(now_us()))


def _check(start_us: int, end_us: int, interval: str, timezone: str, group_by: Sequence[str], limit: int) -> _Window:
    check_interval(interval)
    for name in group_by:
        if name not in GROUPS and not is_tag(name):
            known = ", ".join((*GROUPS, "tag:NAME"))
            raise InvalidQuery(f"group_by: {name!r} is none of {known}", field="group_by")
    if len(set(group_by)) != len(group_by):
        raise InvalidQuery("group_by: a name stands twice", field="group_by")
    if not 1 <= limit <= MAX_BUCKETS:
        raise InvalidQuery(f"limit: {limit} is outside 1..{MAX_BUCKETS}", field="limit")
    check_range(start_us, end_us)
    return _Window(interval, timezone, start_us, end_us, tuple(GROUPS.get(name, name) for name in group_by))


def check_interval(interval: str) -> None:
    """Raises `InvalidQuery`."""
    if interval not in INTERVALS:
        raise InvalidQuery(f"interval: {interval!r} is none of {', '.join(INTERVALS)}", field="interval")


def check_range(start_us: int, end_us: int) -> None:
    """Raises `InvalidQuery` for bounds off the quarter-hours, in the wrong order, or too far apart."""
    for name, at_us in (("start", start_us), ("end", end_us)):
        if at_us % QUARTER_US:
            raise InvalidQuery(f"{name}: {format_time(at_us)} is not on a quarter-hour", field=name)
    if end_us <= start_us:
        raise InvalidQuery("end: must be later than start", field="end")
    if end_us - start_us > MAX_RANGE_US:
        raise InvalidQuery(f"end: the range is longer than {MAX_RANGE_US // DAY_US} days", field="end")


def _buckets(
    merged: dict[tuple[Any, ...], list[Sums]], spans: list[tuple[int, int]], group_by: Sequence[str]
) -> list[UsageBucket]:
    bounds = {start: (format_time(start), format_time(end)) for start, end in spans}
    found = []
    for key, rows in merged.items():
        sums = rows[0].sums if len(rows) == 1 else [sum(each) for each in zip(*(row.sums for row in rows), strict=True)]
        requests, errors, unpriced, estimated, negative_margin = sums[:_TOKENS_FROM]
        start, end = bounds[key[0]]
        margin, margin_partial = _margin(rows)
        found.append(
            UsageBucket(
                start=start,
                end=end,
                group=dict(zip(group_by, key[1:], strict=True)),
                requests=requests,
                errors=errors,
                tokens={name: sums[at] for at, name in _TOKENS if sums[at]},
                unpriced=unpriced,
                estimated=estimated,
                negative_margin=negative_margin,
                **{label: _moneys(rows, currency_at, nano_at) for label, currency_at, nano_at in _MONEY},
                margin=margin,
                margin_partial=margin_partial,
            )
        )
    return found


def _moneys(rows: Sequence[Sums], currency_at: int, nano_at: int) -> list[MoneyView]:
    """One entry per currency, in order."""
    sums: dict[str, int] = {}
    for row in rows:
        currency = str(row[currency_at])
        if currency:
            sums[currency] = sums.get(currency, 0) + row.sums[nano_at]
    return [MoneyView(format_scaled(nano, NANO), currency) for currency, nano in sorted(sums.items())]


def _margin(rows: Sequence[Sums]) -> tuple[_Moneys, bool]:
    """The sums hold no count of rows without a margin. Within one currency the margin is settled less cost, so what is
    missing shows; across two it shows where nothing was recorded at all."""
    sums: dict[str, int] = {}
    lacking: set[str] = set()
    for row in rows:
        settled, cost, margin = (row.sums[at] for at in _MARGIN_OF)
        currency = row.settlement_currency
        sums[currency] = sums.get(currency, 0) + margin
        if margin != settled - cost if row.cost_currency == currency else not margin and (settled or cost):
            lacking.add(currency)
    views = [
        MoneyView(format_scaled(nano, NANO), currency)
        for currency, nano in sorted(sums.items())
        if currency and (nano or currency not in lacking)
    ]
    return views, bool(lacking)


def _encode_cursor(key: tuple[Any, ...]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def _decode_cursor(cursor: str | None, groups: int) -> tuple[Any, ...] | None:
    if cursor is None:
        return None
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        start, *names = msgspec.json.decode(raw, type=list[int | str])
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise InvalidQuery("cursor: not one that this list gave out", field="cursor") from error
    if not isinstance(start, int) or len(names) != groups or not all(isinstance(name, str) for name in names):
        raise InvalidQuery("cursor: belongs to another query", field="cursor")
    return (start, *names)
