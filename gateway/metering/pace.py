"""How many rows go into one transaction: as many as are written in a tenth of a second, for others wait as long."""

from __future__ import annotations

from typing import Final

MOST_ROWS: Final = 1000
FEWEST_ROWS: Final = 250
"""A transaction costs as much as some forty rows: fewer than this would make a slow machine slower."""
LONG_S: Final = 0.1


class Pace:
    """Grows and shrinks by halves, so that a slow moment costs little and is soon forgotten."""

    def __init__(self) -> None:
        self.rows = MOST_ROWS

    def took(self, rows: int, seconds: float) -> None:
        if seconds > LONG_S and rows > self.rows // 2:
            self.rows = max(self.rows // 2, FEWEST_ROWS)
        elif seconds < LONG_S / 3:
            self.rows = min(self.rows * 2, MOST_ROWS)
