"""Words for people."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 provider`, `2 providers`; `many` where that is not `one` with an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"
