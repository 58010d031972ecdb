"""What every number of a request may be: one table, read when a body is parsed and when sampling parameters are made.

The bounds are vLLM's where vLLM documents one. Where it documents none (a temperature or a count without a ceiling, a
repetition penalty that is merely above zero) the bound here is the widest with which float32 logits stay finite and every
number still fits the frames between the two processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import RequestError

MAX_COUNT = (1 << 31) - 1
"""Of anything counted in tokens. Contexts are far shorter."""
MAX_CHOICES = 128
SHOWN_CHARACTERS = 40
"""An error repeats no more of a wrong value than this."""


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float
    above_low: bool = False
    """`low` itself is outside."""

    def __contains__(self, value: float) -> bool:
        """NaN lies in no range."""
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        return f"{'(' if self.above_low else '['}{_plain(self.low)}, {_plain(self.high)}]"


_COUNT = Range(0, MAX_COUNT)
_TOKEN_ID = Range(0, MAX_COUNT)
"""The vocabulary's own end is checked later, with the words that fit it."""

RANGES: Mapping[str, Range] = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0, above_low=True),
    "top_k": Range(-1, MAX_COUNT),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "repetition_penalty": Range(0.01, 100.0),
    "n": Range(1, MAX_CHOICES),
    "seed": Range(-(1 << 63), (1 << 64) - 1),
    "max_tokens": _COUNT,
    "max_completion_tokens": Range(1, MAX_COUNT),
    "min_tokens": _COUNT,
    "top_logprobs": _COUNT,
    "logprobs": _COUNT,
    "prompt_logprobs": _COUNT,
    "truncate_prompt_tokens": Range(-1, MAX_COUNT),
    "dimensions": Range(1, MAX_COUNT),
    "priority": Range(-(1 << 31), (1 << 31) - 1),
}
"""By the parameter's name. Every number in a body has one here or below (tests/local_engine/server/test_numbers.py)."""

ITEM_RANGES: Mapping[str, Range] = {
    "stop_token_ids": _TOKEN_ID,
    "allowed_token_ids": _TOKEN_ID,
    "logit_bias": Range(-100.0, 100.0),
    "prompt": _TOKEN_ID,
    "input": _TOKEN_ID,
    "tokens": _TOKEN_ID,
}
"""Of each number in a parameter that is a list or a map."""


def check_range(param: str, value: float) -> None:
    """Raises `RequestError` naming the parameter when `value` is out of its range."""
    if value not in RANGES[param]:
        raise RequestError(f"{param} must be in {RANGES[param]}, got {shown(value)}.", param=param)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _plain(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"
