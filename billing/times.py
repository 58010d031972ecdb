"""Times are integers: microseconds since 1970-01-01 UTC. A request's time lives inside its UUIDv7 id."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from billing.errors import InvalidTime

SECOND_US: Final = 1_000_000
HOUR_US: Final = 3600 * SECOND_US
DAY_US: Final = 24 * HOUR_US
QUARTER_US: Final = 15 * 60 * SECOND_US
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
EARLIEST_US: Final = 946_684_800 * SECOND_US  # 2000-01-01
LATEST_US: Final = 4_102_444_800 * SECOND_US  # 2100-01-01


def now_us() -> int:
    return time.time_ns() // 1000


def time_us_of(request_id: UUID) -> int:
    """The moment inside a UUIDv7, in microseconds (its precision is a millisecond)."""
    return (request_id.int >> 80) * 1000


def first_id_at(at_us: int) -> UUID:
    """The smallest UUID that a request of that millisecond or later can have: a bound for ranges of ids."""
    return UUID(int=(at_us // 1000) << 80)


def quarter_of(at_us: int) -> int:
    """The start of the UTC quarter-hour that contains `at_us`: the bucket of every rollup."""
    return at_us - at_us % QUARTER_US


def datetime_of(at_us: int) -> datetime:
    return _EPOCH + at_us * _MICROSECOND


def us_of(moment: datetime) -> int:
    """Microseconds since the epoch, exactly. The datetime must carry its zone."""
    assert moment.tzinfo is not None
    return (moment - _EPOCH) // _MICROSECOND


def format_time(at_us: int) -> str:
    """RFC 3339 in UTC: "2026-01-01T00:00:00Z", with a fraction only where there is one."""
    text = datetime_of(at_us).replace(tzinfo=None).isoformat()
    if "." in text:
        text = text.rstrip("0")
    return text + "Z"


def parse_time(text: str, field: str) -> int:
    """An RFC 3339 time with its offset, as microseconds. Raises `InvalidTime` naming `field`: a time without an offset is
    refused, not guessed, and so is one outside the years 2000 to 2099."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidTime(f"{field}: {text!r} is no RFC 3339 time such as 2026-01-01T00:00:00Z", field=field) from error
    if moment.tzinfo is None:
        raise InvalidTime(
            f"{field}: {text!r} has no offset; end it with Z for UTC or with one such as +08:00", field=field
        )
    return check_time(us_of(moment), field)


def check_time(at_us: int, field: str) -> int:
    if not EARLIEST_US <= at_us < LATEST_US:
        raise InvalidTime(f"{field}: {at_us} us is outside the years 2000 to 2099", field=field)
    return at_us
