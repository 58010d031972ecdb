"""The stretch of time and the time zone that a page is about: both in its URL, so that a link shows what was seen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from billing.errors import InvalidTime
from billing.periods import period_bounds, zone_of
from billing.times import DAY_US, HOUR_US, datetime_of, format_time, now_us, us_of

RANGES: Final = {
    "24h": "Last 24 hours",
    "7d": "Last 7 days",
    "30d": "Last 30 days",
    "month": "This month",
    "last_month": "Last month",
}
DEFAULT: Final = "7d"
ZONES: Final = (
    "UTC", "Asia/Shanghai", "Asia/Hong_Kong", "Asia/Singapore", "Asia/Tokyo", "Asia/Seoul", "Asia/Kolkata", "Asia/Dubai",
    "Europe/London", "Europe/Berlin", "Europe/Moscow", "Africa/Johannesburg", "America/Sao_Paulo", "America/New_York",
    "America/Chicago", "America/Los_Angeles", "Australia/Sydney", "Pacific/Auckland",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Range:
    """`name` is one of `RANGES`, or `custom` with its two days; the end is outside. Bounds are days of the zone, or hours."""

    name: str
    timezone: str
    start_us: int
    end_us: int
    first_day: str
    last_day: str

    @property
    def interval(self) -> str:
        """Hours for a day or two, days for less than a quarter, else months."""
        length = self.end_us - self.start_us
        if length <= 2 * DAY_US + 2 * HOUR_US:
            return "hour"
        return "day" if length <= 100 * DAY_US else "month"

    @property
    def query(self) -> dict[str, str]:
        """What the URL has to say to come back to this range."""
        if self.name == "custom":
            return {"from": self.first_day, "to": self.last_day, "tz": self.timezone}
        return {"range": self.name, "tz": self.timezone}

    @property
    def bounds(self) -> dict[str, str]:
        """The same for the admin API."""
        return {"start": format_time(self.start_us), "end": format_time(self.end_us)}


def read_range(query: dict[str, str], timezone: str, at_us: int | None = None) -> Range:
    """Out of a URL. What cannot be read is the default: a page is shown, with its range in sight."""
    at_us = now_us() if at_us is None else at_us
    zone_name = query.get("tz") or timezone
    try:
        zone = zone_of(zone_name)
    except InvalidTime:
        zone_name, zone = "UTC", ZoneInfo("UTC")
    name = query.get("range", "")
    days = _days(query.get("from"), query.get("to"))
    if days is not None and name not in RANGES:
        start_us = period_bounds("day", zone_name, _noon_us(days[0], zone))[0]
        end_us = period_bounds("day", zone_name, _noon_us(days[1], zone))[1]
        name = "custom"
    else:
        name = name if name in RANGES else DEFAULT
        start_us, end_us = _named(name, zone_name, at_us)
    assert end_us is not None
    first, last = (datetime_of(each).astimezone(zone).date().isoformat() for each in (start_us, end_us - 1))
    return Range(name, zone_name, start_us, end_us, first, last)


def _named(name: str, timezone: str, at_us: int) -> tuple[int, int]:
    hour_end = at_us - at_us % HOUR_US + HOUR_US
    if name == "24h":
        return hour_end - 24 * HOUR_US, hour_end
    if name in ("month", "last_month"):
        start, end = period_bounds("month", timezone, at_us)
        if name == "last_month":
            start, end = period_bounds("month", timezone, start - 1)
    else:
        _, end = period_bounds("day", timezone, at_us)
        assert end is not None
        first = end - int(name.removesuffix("d")) * DAY_US + DAY_US // 2
        start, _ = period_bounds("day", timezone, first)
    assert end is not None
    return start, end


def _days(first: str | None, last: str | None) -> tuple[date, date] | None:
    """Two days in order, at most 400 apart."""
    try:
        one, other = date.fromisoformat(first or ""), date.fromisoformat(last or "")
    except ValueError:
        return None
    if not 2000 <= one.year <= 2098 or not one <= other <= one + timedelta(days=395):
        return None
    return one, other


def _noon_us(day: date, zone: ZoneInfo) -> int:
    return us_of(datetime(day.year, day.month, day.day, 12, tzinfo=zone))
