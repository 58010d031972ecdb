"""Calendar periods in a named time zone: days of 23 and 25 hours, weeks from Monday, months."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from billing.errors import InvalidTime
from billing.times import HOUR_US, datetime_of, us_of

PERIODS: Final = ("day", "week", "month", "total")
INTERVALS: Final = ("hour", "day", "month")


@lru_cache(maxsize=64)
def zone_of(name: str, field: str = "timezone") -> ZoneInfo:
    """The zone of that IANA name. Raises `InvalidTime` naming `field`."""
    try:
        if not name or name.startswith(("/", ".")):
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidTime(
            f"{field}: {name!r} is no IANA time zone such as Asia/Shanghai or UTC", field=field
        ) from error


def _midnight_us(day: date, zone: ZoneInfo) -> int:
    """The first moment of that local day. Where clocks jump over midnight, the day starts when the jump ends."""
    local = datetime.combine(day, time(), zone)
    moment = us_of(local)
    if datetime_of(moment).astimezone(zone).replace(tzinfo=None) != local.replace(tzinfo=None):
        # midnight does not exist: with fold=0 the offset before the jump was used, which lands right after it
        return _jump_us(moment, zone)
    return moment


def _jump_us(after_us: int, zone: ZoneInfo) -> int:
    """The transition within the hours before `after_us`, to the second, by bisection over the offset."""
    low, high = after_us - 3 * HOUR_US, after_us
    offset = datetime_of(high).astimezone(zone).utcoffset()
    while high - low > 1_000_000:
        middle = (low + high) // 2
        middle -= middle % 1_000_000
        if datetime_of(middle).astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return high


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def period_bounds(period: str, timezone: str, at_us: int) -> tuple[int, int | None]:
    """Start (inside) and end (outside) of the period that contains `at_us`; (0, None) for `total`.

    A week starts on Monday. Boundaries are local midnights, so a day may have 23 or 25 hours.
    """
    if period == "total":
        return 0, None
    zone = zone_of(timezone)
    day = datetime_of(at_us).astimezone(zone).date()
    if period == "day":
        first, after = day, day + timedelta(days=1)
    elif period == "week":
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    else:
        assert period == "month"
        first = day.replace(day=1)
        after = _next_month(first)
    return _midnight_us(first, zone), _midnight_us(after, zone)


def intervals(interval: str, timezone: str, start_us: int, end_us: int) -> list[tuple[int, int]]:
    """The hours, days or months of that zone which overlap start_us..end_us, clipped to it, in order. Empty when start >= end.

    Hours are counted from each local midnight in elapsed time, so a 25-hour day has 25 of them.
    """
    found: list[tuple[int, int]] = []
    at = start_us
    while at < end_us:
        start, end = period_bounds("day" if interval == "hour" else interval, timezone, at)
        assert end is not None
        if interval == "hour":
            start, end = at - (at - start) % HOUR_US, min(end, at - (at - start) % HOUR_US + HOUR_US)
        found.append((max(start, start_us), min(end, end_us)))
        at = end
    return found
