"""One token per row of logits: greedy, or temperature, min_p, top_k, top_p (in this order) and inverse CDF.

The filters keep everything at or above a threshold, so that ties do not depend on a sort's order. The inverse CDF walks the
vocabulary in the order of token ids, with a uniform number that the caller brings: the same number gives the same token
whatever else is in the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

NUCLEUS_WIDTH = 256
"""Tokens that the reference's top_p looks at first; it sorts further only where they hold less than top_p."""


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """One entry per row. temperature 0: greedy; top_k 0, top_p 1 and min_p 0: off; uniform in [0, 1)."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    uniform: list[float]


def draw_reference(logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
    """One token per row of float32 `logits` [rows, vocab]; None for a row with a NaN, or with nothing above -inf."""
    best, greedy = logits.max(dim=-1)
    tokens: list[int | None] = list(greedy.tolist())
    drawn = [row for row, temperature in enumerate(settings.temperature) if temperature > 0.0]
    if drawn:
        for row, token in zip(drawn, _draw_rows(logits[drawn], drawn, settings), strict=True):
            tokens[row] = token
    for row, fine in enumerate(torch.isfinite(best).tolist()):
        if not fine:
            tokens[row] = None
    return tokens


def _draw_rows(logits: torch.Tensor, rows: list[int], settings: DrawSettings) -> list[int]:
    logits = logits / torch.tensor([[settings.temperature[row]] for row in rows], device=logits.device)
    _mask_below(logits, _min_p_threshold(logits, [settings.min_p[row] for row in rows]))
    _mask_below(logits, _top_k_threshold(logits, [settings.top_k[row] for row in rows]))
    _mask_below(logits, _top_p_threshold(logits, [settings.top_p[row] for row in rows]))
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    uniform = torch.tensor([[settings.uniform[row]] for row in rows], dtype=torch.float64, device=logits.device)
    chosen = torch.searchsorted(cumulative, uniform * total, right=True)
    last = torch.searchsorted(cumulative, total)  # the last token with any weight, should rounding overshoot
    return list(torch.minimum(chosen, last).squeeze(1).tolist())


def _mask_below(logits: torch.Tensor, threshold: torch.Tensor | None) -> None:
    if threshold is not None:
        logits.masked_fill_(logits < threshold, -math.inf)


def _min_p_threshold(logits: torch.Tensor, min_p: list[float]) -> torch.Tensor | None:
    """A token stays when its probability is at least min_p times the best one's."""
    if not any(min_p):
        return None
    floor = torch.tensor([[math.log(p) if p else -math.inf] for p in min_p], device=logits.device)
    return logits.amax(dim=-1, keepdim=True) + floor


def _top_k_threshold(logits: torch.Tensor, top_k: list[int]) -> torch.Tensor | None:
    """The k-th best logit of each row (-inf where top_k is off)."""
    vocabulary = logits.shape[-1]
    asked = [k if 0 < k < vocabulary else 0 for k in top_k]
    if not any(asked):
        return None
    best = logits.topk(max(asked), dim=-1).values
    index = torch.tensor([[max(k - 1, 0)] for k in asked], device=logits.device)
    off = torch.tensor([[k == 0] for k in asked], device=logits.device)
    return best.gather(1, index).masked_fill(off, -math.inf)


def _top_p_threshold(logits: torch.Tensor, top_p: list[float]) -> torch.Tensor | None:
    """The smallest logit of each row's nucleus: the fewest best tokens that hold at least top_p together."""
    if all(p >= 1.0 for p in top_p):
        return None
    wanted = torch.tensor([[p] for p in top_p], device=logits.device)
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    width = min(NUCLEUS_WIDTH, logits.shape[-1])
    while True:
        best = logits.topk(width, dim=-1).values
        held = (best - normaliser).exp().cumsum(dim=-1)
        short = (held[:, -1:] < wanted) & (wanted < 1.0)
        if width == logits.shape[-1] or not bool(short.any()):
            break
        width = min(width * 16, logits.shape[-1])
    before = torch.nn.functional.pad(held[:, :-1], (1, 0))
    last = (before < wanted).sum(dim=-1, keepdim=True) - 1
    return best.gather(1, last.clamp(min=0)).masked_fill(wanted >= 1.0, -math.inf)
