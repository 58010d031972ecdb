"""What a key may do per minute and at once. None is no limit; 0 is nothing allowed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`requests_per_minute` and `tokens_per_minute` count in a sliding minute; `max_parallel` requests run at once."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "max_parallel"):
            value = getattr(self, name)
            if value is not None and (value < 0 or value > MAX_LIMIT):
                raise ValueError(f"{name} must be between 0 and {MAX_LIMIT}, or null for no limit; got {value}")


MAX_LIMIT = 2**50
"""Counters travel through Lua, whose integers are exact below 2^53."""

UNLIMITED = Limits()
