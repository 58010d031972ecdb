"""From logits to tokens, for a whole batch.

The order is vLLM's: logit_bias and min_tokens, penalties, then greedy ones are done; the others by temperature, min_p, top_k,
top_p, and inverse CDF over the vocabulary in the order of token ids. The filters keep everything at or above a threshold, so
that ties do not depend on a sort's order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from .batch import ScheduledSequence
from .philox import uniforms

NUCLEUS_WIDTH = 256
"""Tokens that top_p looks at first; the whole vocabulary is sorted only where they hold less than top_p."""


def sample(logits: torch.Tensor, batch: Sequence[ScheduledSequence]) -> list[int | None]:
    """One token per row of `logits` (float32 [len(batch), vocab], may be overwritten); None where they hold NaN or only -inf."""
    _adjust(logits, batch)
    best, greedy = logits.max(dim=-1)
    tokens: list[int | None] = list(greedy.tolist())
    drawn = [row for row, sequence in enumerate(batch) if not sequence.params.greedy]
    if drawn:
        for row, token in zip(drawn, _draw(logits[drawn], [batch[row] for row in drawn]), strict=True):
            tokens[row] = token
    for row, fine in enumerate(torch.isfinite(best).tolist()):
        if not fine:
            tokens[row] = None
    return tokens


def _adjust(logits: torch.Tensor, batch: Sequence[ScheduledSequence]) -> None:
    """logit_bias, min_tokens and penalties, in place, for the rows that ask for them."""
    for row, sequence in enumerate(batch):
        params = sequence.params
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), device=logits.device)
            logits[row, ids] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
        if sequence.output_position < params.min_tokens and params.ending_token_ids:
            logits[row, torch.tensor(sorted(params.ending_token_ids), device=logits.device)] = -math.inf
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            _penalise(logits[row], sequence)


def _penalise(logits: torch.Tensor, sequence: ScheduledSequence) -> None:
    """Repetition over prompt and output (divides what is positive, multiplies what is not); the others over output alone."""
    params = sequence.params
    ids, counts = np.unique(np.asarray(sequence.output_token_ids, dtype=np.int64), return_counts=True)
    if params.repetition_penalty != 1.0:
        seen = np.union1d(ids, np.asarray(sequence.prompt_token_ids, dtype=np.int64))
        index = torch.from_numpy(seen).to(logits.device)
        values = logits[index]
        penalty = params.repetition_penalty
        logits[index] = torch.where(values > 0, values / penalty, values * penalty)
    if len(ids) and (params.presence_penalty or params.frequency_penalty):
        amount = params.frequency_penalty * counts + params.presence_penalty
        logits[torch.from_numpy(ids).to(logits.device)] -= torch.from_numpy(amount).to(logits)


def _draw(logits: torch.Tensor, batch: Sequence[ScheduledSequence]) -> list[int]:
    params = [sequence.params for sequence in batch]
    temperature = torch.tensor([[p.temperature] for p in params], device=logits.device)
    logits = logits / temperature
    _mask_below(logits, _min_p_threshold(logits, [p.min_p for p in params]))
    _mask_below(logits, _top_k_threshold(logits, [p.top_k for p in params]))
    _mask_below(logits, _top_p_threshold(logits, [p.top_p for p in params]))
    numbers = uniforms([p.seed for p in params], [s.choice_index for s in batch], [s.output_position for s in batch])
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:].contiguous()
    target = torch.from_numpy(numbers)[:, None].to(logits.device) * total
    chosen = torch.searchsorted(cumulative, target, right=True)
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
    threshold = best.gather(1, index)
    off = torch.tensor([[k == 0] for k in asked], device=logits.device)
    return threshold.masked_fill(off, -math.inf)


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
