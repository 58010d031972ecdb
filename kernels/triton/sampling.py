"""Drawing a token per row without a sort: greedy, or temperature, min_p, top_k, top_p (in this order) and inverse CDF.

The definition is kernels/sampling.py's: filters keep everything at or above a threshold. The thresholds of top_k (at least k
logits) and top_p (at least p of the mass) are found exactly, bit by bit: a float's bits, reordered so that they compare as the
floats do, are built from the highest bit down, each kept if enough lies at or above. 32 passes over a row that lies in the L2
cache take the place of sorting it. The walk along the CDF is in float64, as the reference's.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from ..sampling import DrawSettings
from .configs import interpreted

TILE = 4096
"""Logits per step of a program; the interpreter takes larger ones for less."""


NEGATIVE_INFINITY = tl.constexpr(0x007FFFFF)
"""The place of -inf in the order of floats: the 2^32 bit patterns, counted from the most negative one."""


@triton.jit
def _best_of(row, vocabulary, TILE: tl.constexpr):
    """The largest logit, where it stands first, and how many are NaN; each [1]."""
    best = tl.full([1], float("-inf"), tl.float32)
    first = tl.zeros([1], tl.int32)
    broken = tl.zeros([1], tl.int32)
    for start in range(0, vocabulary, TILE):
        columns = start + tl.arange(0, TILE)
        x = tl.load(row + columns, mask=columns < vocabulary, other=float("-inf"))
        broken += tl.sum((x != x).to(tl.int32), axis=0)
        highest = tl.max(x, axis=0)
        where = tl.min(tl.where(x == highest, columns, 2147483647), axis=0)
        first = tl.where(highest > best, where, first)
        best = tl.maximum(best, highest)
    return best, first, broken


@triton.jit
def _weights(row, columns, vocabulary, temperature, top, threshold, candidate):
    """float64: e^(x - top) of what lies at or above both thresholds, and 0. Nothing lies above a candidate that is NaN."""
    x = tl.load(row + columns, mask=columns < vocabulary, other=float("-inf")) / temperature
    kept = (x >= candidate) & (x >= threshold)
    return tl.where(kept, tl.exp(tl.where(kept, x - top, 0.0)), 0.0).to(tl.float64)


@triton.jit
def _amount_above(
    row, vocabulary, temperature, top, threshold, candidate, COUNT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """float64 [1]: how many logits lie at or above the candidate, or how much mass at or above the threshold as well."""
    amount = tl.zeros([1], tl.float64)
    for start in range(0, vocabulary, TILE):
        columns = start + tl.arange(0, TILE)
        if COUNT:
            x = tl.load(row + columns, mask=columns < vocabulary, other=float("-inf")) / temperature
            weight = (x >= candidate).to(tl.float64)
        else:
            weight = _weights(row, columns, vocabulary, temperature, top, threshold, candidate)
        amount += tl.sum(weight, axis=0)
    return amount


@triton.jit
def _float_at(place):
    """The float at a place in the order of floats."""
    bits = tl.where(place >= 2147483648, place - 2147483648, ~place).to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _raised(
    row, vocabulary, temperature, top, threshold, searched, wish, COUNT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The threshold, raised to the highest float with at least `wish` at or above it, where that is `searched`."""
    place = tl.zeros([1], tl.int64)
    for step in range(tl.where(searched, 32, 0)):
        wanted = place + (tl.full([1], 1, tl.int64) << (31 - step))
        amount = _amount_above(row, vocabulary, temperature, top, threshold, _float_at(wanted), COUNT, TILE)
        enough = (amount >= wish) | (wanted <= NEGATIVE_INFINITY)
        place = tl.where(enough, wanted, place)
    return tl.where(searched, tl.maximum(threshold, _float_at(place)), threshold)


@triton.jit
def _walk_to(row, vocabulary, temperature, top, threshold, target, TILE: tl.constexpr):
    """int32 [1]: the first token up to which more than `target` of the mass lies."""
    walked = tl.zeros([1], tl.float64)
    chosen = tl.full([1], 2147483647, tl.int32)
    last = tl.zeros([1], tl.int32)
    for start in range(0, vocabulary, TILE):
        columns = start + tl.arange(0, TILE)
        weight = _weights(row, columns, vocabulary, temperature, top, threshold, threshold)
        walk = walked + tl.cumsum(weight, axis=0)
        chosen = tl.minimum(chosen, tl.min(tl.where((walk > target) & (weight > 0.0), columns, 2147483647), axis=0))
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, columns, 0), axis=0))
        walked += tl.sum(weight, axis=0)
    return tl.minimum(chosen, last)  # the last token with any weight, should rounding overshoot


@triton.jit
def _draw(
    logits, row_stride, vocabulary, settings, settings_stride, tokens, TILE: tl.constexpr
):  # fmt: skip
    number = tl.program_id(0)
    row = logits + number.to(tl.int64) * row_stride
    temperature = tl.load(settings + number).to(tl.float32)
    top_k = tl.load(settings + settings_stride + number)
    top_p = tl.load(settings + 2 * settings_stride + number).to(tl.float32)
    floor = tl.load(settings + 3 * settings_stride + number).to(tl.float32)
    uniform = tl.load(settings + 4 * settings_stride + number)

    best, first, broken = _best_of(row, vocabulary, TILE)
    greatest = tl.max(best, axis=0)
    if (tl.sum(broken, axis=0) > 0) | (greatest == float("-inf")) | (greatest == float("inf")):
        tl.store(tokens + number, -1)
        return
    if temperature == 0.0:
        tl.store(tokens + number, tl.max(first, axis=0))
        return

    # The threshold only rises: min_p's, then top_k's k-th best logit, then the last logit of top_p's nucleus.
    top = best / temperature
    threshold = top + floor
    wish = top_k + tl.zeros([1], tl.float64)
    threshold = _raised(row, vocabulary, temperature, top, threshold, top_k > 0, wish, True, TILE)
    mass = _amount_above(row, vocabulary, temperature, top, threshold, threshold, False, TILE)
    threshold = _raised(row, vocabulary, temperature, top, threshold, top_p < 1.0, top_p * mass, False, TILE)

    total = _amount_above(row, vocabulary, temperature, top, threshold, threshold, False, TILE)
    token = _walk_to(row, vocabulary, temperature, top, threshold, uniform * total, TILE)
    tl.store(tokens + number, tl.max(token, axis=0))


def draw_on_device(logits: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
    """int32 [rows] on the device: a token per row of float32 `logits` [rows, vocab], -1 where it holds NaN or only -inf."""
    rows, vocabulary = logits.shape
    device = logits.device
    tokens = torch.empty(rows, dtype=torch.int32, device=device)
    if not rows:
        return tokens
    packed = torch.tensor(
        [
            settings.temperature,
            [k if 0 < k < vocabulary else 0 for k in settings.top_k],
            settings.top_p,
            [math.log(p) if p else -math.inf for p in settings.min_p],
            settings.uniform,
        ],
        dtype=torch.float64,
        pin_memory=device.type == "cuda",
    ).to(device, non_blocking=True)
    tile = triton.next_power_of_2(vocabulary) if interpreted() else min(TILE, triton.next_power_of_2(vocabulary))
    _draw[(rows,)](
        logits, logits.stride(0), vocabulary, packed, packed.stride(0), tokens,
        TILE=tile, num_warps=8,
    )  # fmt: skip
    return tokens


def draw(logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
    """As `draw_reference`: one token per row, None where there is none."""
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    return [None if token < 0 else token for token in draw_on_device(logits, settings).tolist()]
