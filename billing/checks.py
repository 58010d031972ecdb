"""Checks that every catalog write shares. An error carries the field it is about."""

from __future__ import annotations

from typing import Final

from billing.errors import BillingError, InvalidAmount
from billing.money import parse_scaled

MAX_TEXT: Final = 300


def check_text(value: str, field: str, error: type[BillingError]) -> None:
    """That a name or a source is there, printable and not longer than 300 characters."""
    if not value or not value.strip() or len(value) > MAX_TEXT or not value.isprintable():
        raise error(f"{field}: 1 to {MAX_TEXT} printable characters", field=field)


def parse_field(text: str, scale: int, field: str) -> int:
    """`money.parse_scaled` with the field in the error."""
    try:
        return parse_scaled(text, scale, field)
    except InvalidAmount as error:
        error.field = field
        raise
