"""Small value types that the bodies share: bounded texts, decimal strings and moments."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from billing.times import format_time, parse_time

_PRINTABLE: Final = r"^[^\x00-\x1f\x7f]*$"
_DECIMAL: Final = r"^-?[0-9]+(\.[0-9]+)?$"
_CURRENCY: Final = r"^[A-Z]{3}$"
_MONTH: Final = r"^[0-9]{4}-(0[1-9]|1[0-2])$"
_TAG: Final = r"^[A-Za-z0-9_.-]{1,64}$"

ASKED: Final = {
    _PRINTABLE: "write it on one line, without control characters",
    _DECIMAL: "write a decimal number in plain digits, such as 12.50",
    _CURRENCY: "write an ISO 4217 code, three capitals such as USD",
    _MONTH: "write a month such as 2026-11",
    _TAG: "write names of 1 to 64 characters out of A-Z a-z 0-9 _ . -",
}
"""What each pattern asks for, in words that follow a field's name."""

Text = Annotated[str, Meta(min_length=1, max_length=200, pattern=_PRINTABLE)]
Note = Annotated[str, Meta(max_length=2000, pattern=_PRINTABLE)]
Decimal = Annotated[str, Meta(max_length=60, pattern=_DECIMAL, description="A decimal number as text.")]
Moment = Annotated[str, Meta(max_length=40, description="RFC 3339, with its offset: 2026-01-01T00:00:00Z.")]
Currency = Annotated[str, Meta(pattern=_CURRENCY, description="ISO 4217.")]
Month = Annotated[str, Meta(pattern=_MONTH, description="Such as 2026-11, in the team's time zone.")]
TagName = Annotated[str, Meta(pattern=_TAG)]


def moment(at_us: int | None) -> str | None:
    return None if at_us is None else format_time(at_us)


def moment_us(text: str | None, field: str) -> int | None:
    """Microseconds of an RFC 3339 text. Raises `InvalidTime` that names `field`."""
    return None if text is None else parse_time(text, field)
