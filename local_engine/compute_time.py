"""A step's wall time, split among its sequences so that not a microsecond is lost (`usage.metergate.compute_us`)."""

from __future__ import annotations

from collections.abc import Sequence

PREFILL_TOKEN_WEIGHT = 1
DECODE_TOKEN_WEIGHT = 2
"""A decoded token reads its own whole KV cache and goes through the head and the sampler; a prompt token shares both."""


def token_weight(count: int, samples: bool) -> int:
    """Weight of one share of a step: `count` tokens, the last of which may be sampled from."""
    return PREFILL_TOKEN_WEIGHT * (count - 1) + (DECODE_TOKEN_WEIGHT if samples else PREFILL_TOKEN_WEIGHT)


def split(total_us: int, weights: Sequence[int]) -> list[int]:
    """Integer parts in proportion to positive weights, by largest remainder (earlier first among equals); sum = total."""
    assert weights, "somebody has to bear the time"
    whole = sum(weights)
    parts = [total_us * weight // whole for weight in weights]
    remainders = sorted(range(len(weights)), key=lambda index: -(total_us * weights[index] % whole))
    for index in remainders[: total_us - sum(parts)]:
        parts[index] += 1
    return parts
