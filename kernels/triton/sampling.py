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
    mass = tl.zeros([1], tl.float64)
    for phase in tl.static_range(3):  # 0: top_k; 1: the mass that is left; 2: top_p
        if phase == 0:
            searched = top_k > 0
            wish = top_k + tl.zeros([1], tl.float64)
        else:
            searched = top_p < 1.0
            wish = top_p * mass
        steps = 1
        if phase != 1:
            steps = tl.where(searched, 32, 0)
        place = tl.zeros([1], tl.int64)
        for step in range(steps):
            wanted = place + (tl.full([1], 1, tl.int64) << (31 - step))
            bits = tl.where(wanted >= 2147483648, wanted - 2147483648, ~wanted).to(tl.int32)
            candidate = bits.to(tl.float32, bitcast=True)
            if phase == 1:
                candidate = threshold
            amount = tl.zeros([1], tl.float64)
            for start in range(0, vocabulary, TILE):
                columns = start + tl.arange(0, TILE)
                x = tl.load(row + columns, mask=columns < vocabulary, other=float("-inf")) / temperature
                if phase == 0:
                    weight = (x >= candidate).to(tl.float64)
                else:
                    kept = (x >= candidate) & (x >= threshold)
                    weight = tl.where(kept, tl.exp(tl.where(kept, x - top, 0.0)), 0.0).to(tl.float64)
                amount += tl.sum(weight, axis=0)
            if phase == 1:
                mass = amount
            else:
                enough = (amount >= wish) | (wanted <= NEGATIVE_INFINITY)
                place = tl.where(enough, wanted, place)
        if phase != 1:
            bits = tl.where(place >= 2147483648, place - 2147483648, ~place).to(tl.int32)
            found = bits.to(tl.float32, bitcast=True)
            threshold = tl.where(searched, tl.maximum(threshold, found), threshold)

    total = tl.zeros([1], tl.float64)
    for start in range(0, vocabulary, TILE):
        columns = start + tl.arange(0, TILE)
        x = tl.load(row + columns, mask=columns < vocabulary, other=float("-inf")) / temperature
        kept = x >= threshold
        total += tl.sum(tl.where(kept, tl.exp(tl.where(kept, x - top, 0.0)), 0.0).to(tl.float64), axis=0)
    target = uniform * total
    walked = tl.zeros([1], tl.float64)
    chosen = tl.full([1], 2147483647, tl.int32)
    last = tl.zeros([1], tl.int32)
    for start in range(0, vocabulary, TILE):
        columns = start + tl.arange(0, TILE)
        x = tl.load(row + columns, mask=columns < vocabulary, other=float("-inf")) / temperature
        kept = x >= threshold
        weight = tl.where(kept, tl.exp(tl.where(kept, x - top, 0.0)), 0.0).to(tl.float64)
        walk = walked + tl.cumsum(weight, axis=0)
        chosen = tl.minimum(chosen, tl.min(tl.where((walk > target) & (weight > 0.0), columns, 2147483647), axis=0))
        last = tl.maximum(last, tl.max(tl.where(weight > 0.0, columns, 0), axis=0))
        walked += tl.sum(weight, axis=0)
    # The last token with any weight, should rounding overshoot.
    tl.store(tokens + number, tl.max(tl.minimum(chosen, last), axis=0))


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
