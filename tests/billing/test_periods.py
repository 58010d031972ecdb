"""Rule 8: boundaries follow the named time zone, with 23- and 25-hour days."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidTime
from billing.periods import intervals, period_bounds
from billing.times import HOUR_US, QUARTER_US, datetime_of, format_time, parse_time
from tests.billing.helpers import at

ZONES = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Asia/Beirut",
]


def _bounds(period: str, zone: str, when: str) -> tuple[str, str | None]:
    start, end = period_bounds(period, zone, at(when))
    return format_time(start), None if end is None else format_time(end)


def test_rule_08_a_day_in_shanghai_starts_at_sixteen_utc() -> None:
    assert _bounds("day", "Asia/Shanghai", "2026-11-30T15:59:59Z") == ("2026-11-29T16:00:00Z", "2026-11-30T16:00:00Z")
    assert _bounds("day", "Asia/Shanghai", "2026-11-30T16:00:00Z") == ("2026-11-30T16:00:00Z", "2026-12-01T16:00:00Z")


@pytest.mark.parametrize(
    ("when", "hours"),
    [("2026-03-08T12:00:00-04:00", 23), ("2026-11-01T12:00:00-05:00", 25), ("2026-07-01T12:00:00Z", 24)],
)
def test_rule_08_a_day_has_23_or_25_hours_when_clocks_change(when: str, hours: int) -> None:
    start, end = period_bounds("day", "America/New_York", at(when))
    assert end is not None
    assert end - start == hours * HOUR_US
    assert len(intervals("hour", "America/New_York", start, end)) == hours


def test_rule_08_where_midnight_does_not_exist_the_day_starts_when_the_jump_ends() -> None:
    # Cairo 2026-04-24: clocks go from 00:00 to 01:00, so the day starts at 01:00 local, 22:00 UTC the day before.
    assert _bounds("day", "Africa/Cairo", "2026-04-24T12:00:00Z") == ("2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z")


def test_rule_08_weeks_start_on_monday_and_months_on_the_first() -> None:
    assert _bounds("week", "UTC", "2026-11-29T23:59:59Z") == ("2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z")
    assert _bounds("week", "UTC", "2026-11-30T00:00:00Z") == ("2026-11-30T00:00:00Z", "2026-12-07T00:00:00Z")
    assert _bounds("month", "Asia/Shanghai", "2026-12-31T16:00:00Z") == ("2026-12-31T16:00:00Z", "2027-01-31T16:00:00Z")
    assert _bounds("total", "UTC", "2026-11-30T00:00:00Z") == ("1970-01-01T00:00:00Z", None)


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["day", "week", "month"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),  # noqa: DTZ001 - hypothesis wants naive bounds
)
def test_rule_08_periods_tile_the_time_line_on_quarter_hours(zone: str, period: str, moment: datetime) -> None:
    when = at(moment.replace(tzinfo=UTC).isoformat())
    start, end = period_bounds(period, zone, when)
    assert end is not None
    assert start <= when < end
    assert start % QUARTER_US == 0
    assert period_bounds(period, zone, end)[0] == end
    assert period_bounds(period, zone, start)[0] == start
    before, first = (datetime_of(us).astimezone(ZoneInfo(zone)).date() for us in (start - 1, start))
    assert before < first


@given(
    st.sampled_from(ZONES),
    st.sampled_from(["hour", "day", "month"]),
    st.integers(0, 10**5),
    st.integers(1, 400),
)
def test_intervals_cover_a_range_without_gap_or_overlap(zone: str, interval: str, offset: int, quarters: int) -> None:
    start = at("2026-01-01T00:00:00Z") + offset * QUARTER_US
    end = start + quarters * QUARTER_US
    spans = intervals(interval, zone, start, end)
    assert spans[0][0] == start
    assert spans[-1][1] == end
    assert all(left[1] == right[0] for left, right in pairwise(spans))


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime"])
def test_an_unknown_zone_is_refused_with_its_field(zone: str) -> None:
    with pytest.raises(InvalidTime, match="IANA") as caught:
        period_bounds("day", zone, at("2026-11-30T00:00:00Z"))
    assert caught.value.field == "timezone"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("2026-01-01T00:00:00", "has no offset"),
        ("yesterday", "no RFC 3339 time"),
        ("1969-12-31T23:59:59Z", "outside the years 2000 to 2099"),
        ("9999-01-01T00:00:00Z", "outside the years 2000 to 2099"),
    ],
)
def test_a_time_that_is_none_is_refused_with_its_field(text: str, complaint: str) -> None:
    with pytest.raises(InvalidTime, match=complaint) as caught:
        parse_time(text, "effective_from")
    assert caught.value.field == "effective_from"


def test_times_are_written_as_rfc_3339_in_utc() -> None:
    assert format_time(parse_time("2026-01-01T08:00:00+08:00", "at")) == "2026-01-01T00:00:00Z"
    assert format_time(parse_time("2026-01-01T00:00:00.250Z", "at")) == "2026-01-01T00:00:00.25Z"
