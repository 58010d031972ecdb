"""Rule 8: budget periods follow the named time zone; a reset is neither early nor late. The clock is simulated."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.budgets import BudgetRow
from gateway.admission.claims import Granted
from gateway.admission.memory import MemoryStore
from gateway.admission.periods import Periods
from tests.gateway.admission.helpers import Clock, charge, claim, granted, refused, seeded

HOUR_US = 3_600_000_000


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


def budget(period: str, timezone: str, budget_id: int = 1) -> BudgetRow:
    return BudgetRow(budget_id, "team", "team_a", 1000, "EUR", period, timezone, True)


@pytest.mark.parametrize(
    ("period", "timezone", "inside", "start", "hours"),
    [
        ("day", "Europe/Berlin", "2026-03-29T12:00+02:00", "2026-03-29T00:00+01:00", 23),
        ("day", "Europe/Berlin", "2026-10-25T02:30+02:00", "2026-10-25T00:00+02:00", 25),
        ("day", "Europe/Berlin", "2026-10-25T02:30+01:00", "2026-10-25T00:00+02:00", 25),
        ("day", "Asia/Kolkata", "2026-11-30T05:00+05:30", "2026-11-30T00:00+05:30", 24),
        ("day", "Asia/Shanghai", "2026-12-31T23:59+08:00", "2026-12-31T00:00+08:00", 24),
        ("day", "UTC", "2028-02-29T00:00+00:00", "2028-02-29T00:00+00:00", 24),
        ("week", "Europe/Berlin", "2026-03-29T23:59+02:00", "2026-03-23T00:00+01:00", 7 * 24 - 1),
        ("week", "Asia/Shanghai", "2027-01-01T00:00+08:00", "2026-12-28T00:00+08:00", 7 * 24),
        ("month", "Asia/Kolkata", "2026-02-28T23:59+05:30", "2026-02-01T00:00+05:30", 28 * 24),
        ("month", "Asia/Shanghai", "2028-02-29T23:59+08:00", "2028-02-01T00:00+08:00", 29 * 24),
        ("month", "Europe/Berlin", "2026-10-31T23:59+01:00", "2026-10-01T00:00+02:00", 31 * 24 + 1),
        ("month", "UTC", "2026-12-31T23:59+00:00", "2026-12-01T00:00+00:00", 31 * 24),
    ],
)
def test_rule_08_a_period_begins_at_local_midnight_and_has_its_own_length(
    period: str, timezone: str, inside: str, start: str, hours: int
) -> None:
    found = Periods().of(budget(period, timezone), us(inside))
    assert found.start_us == us(start)
    assert found.end_us == us(start) + hours * HOUR_US
    assert found.window.bounds() == (found.start_us, found.end_us)


def test_a_budget_for_ever_has_no_end() -> None:
    found = Periods().of(budget("total", "UTC"), us("2026-01-01T00:00+00:00"))
    assert (found.start_us, found.end_us, found.window.window) == (0, None, "0-")


@settings(max_examples=200, deadline=None)
@given(
    st.integers(us("2024-01-01T00:00+00:00"), us("2031-01-01T00:00+00:00")),
    st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "Asia/Shanghai", "America/St_Johns", "Africa/Cairo", "UTC"]),
    st.sampled_from(["day", "week", "month"]),
)
def test_rule_08_the_microsecond_before_a_reset_is_the_old_period_and_the_reset_is_the_new(
    at_us: int, timezone: str, period: str
) -> None:
    periods, row = Periods(), budget(period, timezone)
    found = periods.of(row, at_us)
    assert found.end_us is not None
    assert found.start_us <= at_us < found.end_us
    assert periods.of(row, found.end_us - 1) == found
    following = periods.of(row, found.end_us)
    assert following.start_us == found.end_us
    assert periods.of(row, at_us) == found
    local = datetime.fromtimestamp(found.start_us // 1_000_000, UTC).astimezone(ZoneInfo(timezone))
    assert local.minute == 0
    assert local.hour in (0, 1)  # 1 where clocks jump over midnight (Cairo)


async def test_rule_08_an_exhausted_day_opens_at_local_midnight_and_not_a_moment_before() -> None:
    """Berlin's 25-hour day: at 23:59:59.999999 the budget is still gone, a microsecond later it is whole."""
    clock, periods, row = Clock(), Periods(), budget("day", "Europe/Berlin")
    store = MemoryStore(clock)
    clock.now_us = us("2026-10-25T00:00+02:00")

    async def ask() -> bool:
        period = periods.of(row, clock.now_us)
        if period.window not in seen:
            seen.add(period.window)
            await seeded(store, 1, window=period.window.window)
        return isinstance(await store.admit(claim(charge(1000, 1000, window=period.window.window), ttl_s=1e6)), Granted)

    seen: set[object] = set()
    assert await ask()
    clock.now_us += 25 * HOUR_US - 1
    assert not await ask()
    clock.now_us += 1
    assert await ask()
    assert not await ask()
    assert len(seen) == 2


async def test_a_request_is_settled_in_the_period_in_which_it_began() -> None:
    clock, store = Clock(), MemoryStore(Clock())
    periods, row = Periods(), budget("day", "Asia/Shanghai")
    clock.now_us = us("2026-11-30T23:59:59+08:00")
    today = periods.of(row, clock.now_us).window.window
    tomorrow = periods.of(row, clock.now_us + 1_000_000).window.window
    await seeded(store, 1, window=today)
    await seeded(store, 1, window=tomorrow)
    request = claim(charge(900, 1000, window=today))
    granted(await store.admit(request))
    clock.advance(5)
    await store.settle(request, 0, {1: 900})
    assert refused(await store.admit(claim(charge(101, 1000, window=today)))).available_nano == 100
    granted(await store.admit(claim(charge(1000, 1000, window=tomorrow))))
