"""Small value types that the bodies share: bounded texts, decimal strings and moments."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from billing.times import format_time, parse_time

_PRINTABLE: Final = r"^[^\x00-\x1f\x7f]*$"

Text = Annotated[str, Meta(min_length=1, max_length=200, pattern=_PRINTABLE)]
Note = Annotated[str, Meta(max_length=2000, pattern=_PRINTABLE)]
Decimal = Annotated[str, Meta(max_length=60, pattern=r"^-?[0-9]+(\.[0-9]+)?$", description="A decimal number as text.")]
Moment = Annotated[str, Meta(max_length=40, description="RFC 3339, with its offset: 2026-01-01T00:00:00Z.")]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$", description="ISO 4217.")]


def moment(at_us: int | None) -> str | None:
    return None if at_us is None else format_time(at_us)


def moment_us(text: str | None, field: str) -> int | None:
    """Microseconds of an RFC 3339 text. Raises `InvalidTime` that names `field`."""
    return None if text is None else parse_time(text, field)
