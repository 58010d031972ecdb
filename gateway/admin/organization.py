"""OpenAI's organization usage and costs, in their exact shapes, out of the rollups: tools made for OpenAI's read Metergate.

A project is a team, an API key a key, a line item a model; a cost is what the team was settled at, one result per currency.
Buckets are whole hours or days of UTC, also those in which nothing was used. Source: OpenAI's API reference, Usage.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from litestar import Controller, Request, get
from msgspec import Struct

from billing.ledger import usage_buckets
from billing.money import Money
from billing.reads import UsageFilters
from billing.reports import MAX_BUCKETS, UsageBucket
from billing.times import DAY_US, EARLIEST_US, HOUR_US, LATEST_US, SECOND_US, now_us, parse_time
from gateway import errors
from gateway.admin.services import Injected, Rooms

HOUR_S, DAY_S = HOUR_US // SECOND_US, DAY_US // SECOND_US
WIDTHS: Final = {"1h": (HOUR_S, "hour", 24, 168), "1d": (DAY_S, "day", 7, 31)}
"""Bucket width: seconds, the rollups' interval, how many buckets a page has by default and at most."""
COST_WIDTHS: Final = {"1d": (DAY_S, "day", 7, 180)}
GROUPS: Final = {"project_id": "team", "api_key_id": "key", "model": "model"}
COST_GROUPS: Final = {"project_id": "team", "api_key_id": "key", "line_item": "model"}
FILTERS: Final = {"project_ids": "team", "api_key_ids": "key", "models": "model"}
COST_FILTERS: Final = {"project_ids": "team", "api_key_ids": "key", "line_items": "model"}
NOT_KEPT: Final = frozenset({"user_id", "batch", "service_tier", "api_source", "user_ids"})
"""What OpenAI can group or filter by and the rollups do not hold."""
_INPUT: Final = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "audio_input", "image_input")
_WRITES: Final = ("cache_write_5m", "cache_write_1h")
_OUTPUT: Final = ("output", "audio_output", "image_output")


class CompletionsResult(Struct, frozen=True, kw_only=True):
    object: str = "organization.usage.completions.result"
    input_tokens: int
    input_cached_tokens: int
    input_cache_write_tokens: int
    input_uncached_tokens: int
    input_text_tokens: int
    input_audio_tokens: int
    input_image_tokens: int
    output_tokens: int
    output_text_tokens: int
    output_audio_tokens: int
    output_image_tokens: int
    num_model_requests: int
    project_id: str | None = None
    user_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None


class Amount(Struct, frozen=True):
    value: msgspec.Raw
    """A JSON number, exact to the last digit."""
    currency: str


class CostsResult(Struct, frozen=True, kw_only=True):
    object: str = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None


class Bucket(Struct, frozen=True, kw_only=True):
    object: str = "bucket"
    start_time: int
    end_time: int
    results: list[Any]


class Page(Struct, frozen=True, kw_only=True):
    object: str = "page"
    data: list[Bucket]
    has_more: bool
    next_page: str | None


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the two endpoints differ in."""

    widths: dict[str, tuple[int, str, int, int]]
    groups: dict[str, str]
    filters: dict[str, str]


COMPLETIONS: Final = _Kind(WIDTHS, GROUPS, FILTERS)
COSTS: Final = _Kind(COST_WIDTHS, COST_GROUPS, COST_FILTERS)


@dataclass(frozen=True, slots=True)
class _Asked:
    """`starts` are the buckets of this page, in order; `groups` OpenAI's names; `only` the wanted values of our groups."""

    starts: list[int]
    width_s: int
    interval: str
    groups: list[str]
    only: dict[str, frozenset[str]]
    next_page: str | None


class OrganizationController(Controller):
    path = "/"
    tags = ("organization",)

    @get("/usage/completions", summary="OpenAI's completions usage: tokens and requests per bucket")
    async def completions(self, request: Request[Any, Any, Any], rooms: Injected) -> Page:
        """`start_time` (required), `end_time`, `bucket_width` 1h or 1d, `group_by`, `project_ids`, `api_key_ids`, `models`,
        `limit`, `page`."""
        asked = _read(request, COMPLETIONS)
        sums: dict[tuple[int, tuple[str, ...]], dict[str, int]] = {}
        for start, names, bucket in await _rows(rooms, asked, COMPLETIONS):
            total = sums.setdefault((start, names), {"requests": 0})
            total["requests"] += bucket.requests
            for token_class, count in bucket.tokens.items():
                total[token_class] = total.get(token_class, 0) + count
        results = [(start, _completions(total, asked, names)) for (start, names), total in sums.items()]
        return _page(asked, results)

    @get("/costs", summary="OpenAI's costs: what was charged per day, one result per currency")
    async def costs(self, request: Request[Any, Any, Any], rooms: Injected) -> Page:
        """`start_time` (required), `end_time`, `bucket_width` 1d, `group_by`, `project_ids`, `api_key_ids`, `line_items`,
        `limit`, `page`."""
        asked = _read(request, COSTS)
        sums: dict[tuple[int, tuple[str, ...], str], int] = {}
        for start, names, bucket in await _rows(rooms, asked, COSTS):
            for each in bucket.settled:
                key = (start, names, each.currency)
                sums[key] = sums.get(key, 0) + Money.parse(each.amount, each.currency).nano
        results = [
            (start, _cost(nano, currency, asked, names)) for (start, names, currency), nano in sorted(sums.items())
        ]
        return _page(asked, results)


def _completions(total: dict[str, int], asked: _Asked, names: tuple[str, ...]) -> CompletionsResult:
    def count(*classes: str) -> int:
        return sum(total.get(each, 0) for each in classes)

    return CompletionsResult(
        input_tokens=count(*_INPUT),
        input_cached_tokens=count("cache_read"),
        input_cache_write_tokens=count(*_WRITES),
        input_uncached_tokens=count("input", "audio_input", "image_input"),
        input_text_tokens=count("input"),
        input_audio_tokens=count("audio_input"),
        input_image_tokens=count("image_input"),
        output_tokens=count(*_OUTPUT),
        output_text_tokens=count("output"),
        output_audio_tokens=count("audio_output"),
        output_image_tokens=count("image_output"),
        num_model_requests=total["requests"],
        **_named(asked, names),
    )


def _cost(nano: int, currency: str, asked: _Asked, names: tuple[str, ...]) -> CostsResult:
    value = msgspec.Raw(Money(currency, nano).amount.encode())
    return CostsResult(amount=Amount(value, currency.lower()), **_named(asked, names))


def _named(asked: _Asked, names: tuple[str, ...]) -> dict[str, Any]:
    return dict(zip(asked.groups, names, strict=True))


def _page(asked: _Asked, results: Iterable[tuple[int, Any]]) -> Page:
    found: dict[int, list[Any]] = {start: [] for start in asked.starts}
    for start, result in results:
        found[start].append(result)
    data = [Bucket(start_time=start, end_time=start + asked.width_s, results=each) for start, each in found.items()]
    return Page(data=data, has_more=asked.next_page is not None, next_page=asked.next_page)


async def _rows(rooms: Rooms, asked: _Asked, kind: _Kind) -> list[tuple[int, tuple[str, ...], UsageBucket]]:
    """Every rollup bucket of the page that the filters let through, with its start and its values of the asked groups."""
    if not asked.starts:
        return []
    ours = list(dict.fromkeys([kind.groups[name] for name in asked.groups] + list(asked.only)))
    single = {name: next(iter(values)) for name, values in asked.only.items() if len(values) == 1}
    filters = UsageFilters(team_id=single.get("team"), key_id=single.get("key"), model=single.get("model"))
    found: list[tuple[int, tuple[str, ...], UsageBucket]] = []
    cursor = None
    async with rooms.read() as connection:
        while True:
            page = await usage_buckets(
                connection,
                asked.starts[0] * SECOND_US,
                (asked.starts[-1] + asked.width_s) * SECOND_US,
                interval=asked.interval,
                group_by=ours,
                filters=filters,
                cursor=cursor,
                limit=MAX_BUCKETS,
            )
            for bucket in page.data:
                if all(bucket.group[name] in values for name, values in asked.only.items()):
                    names = tuple(bucket.group[kind.groups[name]] for name in asked.groups)
                    found.append((parse_time(bucket.start, "start") // SECOND_US, names, bucket))
            cursor = page.next_cursor
            if cursor is None:
                return found


def _read(request: Request[Any, Any, Any], kind: _Kind) -> _Asked:
    """The query, with lists as OpenAI's clients send them: `models=a&models=b`, or `models[]=a`. Raises `ApiError` 400."""
    single, many = _split(request, kind)
    width = single.get("bucket_width", "1d")
    if width == "1m" and "1h" in kind.widths:
        raise _bad(
            "bucket_width: usage is kept per quarter-hour, so minutes cannot be told apart; ask for 1h or 1d",
            "bucket_width",
        )
    if width not in kind.widths:
        raise _bad(f"bucket_width: {width[:20]!r} is none of {', '.join(kind.widths)}", "bucket_width")
    width_s, interval, default, most = kind.widths[width]
    limit = _number(single, "limit", default)
    if not 1 <= limit <= most:
        raise _bad(f"limit: for bucket_width={width} it is 1 to {most}", "limit")
    if "start_time" not in single:
        raise _bad("start_time: is required, in seconds since 1970", "start_time")
    start, end = _number(single, "start_time", 0), _number(single, "end_time", now_us() // SECOND_US)
    for name, value in (("start_time", start), ("end_time", end)):
        if not EARLIEST_US <= value * SECOND_US < LATEST_US:
            raise _bad(f"{name}: seconds since 1970, in the years 2000 to 2099", name)
    if end <= start and "end_time" in single:
        raise _bad("end_time: must be later than start_time", "end_time")
    first = start - start % width_s
    if "page" in single:
        first = max(first, _from_page(single["page"], width_s))
    starts = list(range(first, end, width_s))
    groups = list(dict.fromkeys(many.get("group_by", [])))
    for name in groups:
        if name in NOT_KEPT:
            raise _bad(f"group_by: {name} is not kept here; {', '.join(kind.groups)} are", "group_by")
        if name not in kind.groups:
            raise _bad(f"group_by: {name[:40]!r} is none of {', '.join(kind.groups)}", "group_by")
    only = {kind.filters[name]: frozenset(values) for name, values in many.items() if name in kind.filters}
    following = _to_page(starts[limit]) if len(starts) > limit else None
    return _Asked(starts[:limit], width_s, interval, groups, only, following)


def _split(request: Request[Any, Any, Any], kind: _Kind) -> tuple[dict[str, str], dict[str, list[str]]]:
    lists = {"group_by", *kind.filters}
    singles = {"start_time", "end_time", "bucket_width", "limit", "page"}
    single: dict[str, str] = {}
    many: dict[str, list[str]] = {}
    for written, value in request.query_params.multi_items():
        name = written.removesuffix("[]")
        if "\x00" in value or len(value) > 500:
            raise _bad(f"{name[:40]}: is no text that could stand there", name[:40])
        if name in lists:
            many.setdefault(name, []).extend(each for each in value.split(",") if each)
        elif name in singles and name not in single:
            single[name] = value
        elif name in NOT_KEPT:
            raise _bad(f"{name}: is not kept here; filter by {', '.join(kind.filters)}", name)
        else:
            reason = "is given more than once" if name in singles else "unknown parameter"
            raise _bad(f"{name[:40]}: {reason}; known: {', '.join(sorted(lists | singles))}", name[:40])
    return single, many


def _number(single: dict[str, str], name: str, default: int) -> int:
    text = single.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise _bad(f"{name}: {text[:20]!r} is no whole number", name)
    return int(text)


def _to_page(start: int) -> str:
    return "page_" + base64.urlsafe_b64encode(str(start).encode()).decode().rstrip("=")


def _from_page(page: str, width_s: int) -> int:
    text = page.removeprefix("page_")
    try:
        start = int(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        if start % width_s or not EARLIEST_US <= start * SECOND_US < LATEST_US:
            raise ValueError(start)
        return start
    except (binascii.Error, ValueError) as error:
        raise _bad("page: is not a `next_page` of this list", "page") from error


def _bad(message: str, param: str) -> errors.ApiError:
    return errors.bad_request(message, param=param, code="invalid_value")
