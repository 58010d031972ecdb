"""From logits to tokens, for a whole batch: what a request asks for, on top of the kernels' draw.

The order is vLLM's: logit_bias and min_tokens, penalties, then greedy ones are done; the others by temperature, min_p, top_k,
top_p, and inverse CDF over the vocabulary in the order of token ids.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from kernels.sampling import DrawSettings, draw_reference

from .batch import ScheduledSequence
from .philox import uniforms

Draw = Callable[[torch.Tensor, DrawSettings], list[int | None]]


def sample(logits: torch.Tensor, batch: Sequence[ScheduledSequence], draw: Draw = draw_reference) -> list[int | None]:
    """One token per row of `logits` (float32 [len(batch), vocab], may be overwritten); None where they hold NaN or only -inf."""
    _adjust(logits, batch)
    params = [sequence.params for sequence in batch]
    settings = DrawSettings(
        temperature=[p.temperature for p in params],
        top_k=[p.top_k for p in params],
        top_p=[p.top_p for p in params],
        min_p=[p.min_p for p in params],
        uniform=list(
            uniforms(
                [p.seed for p in params], [s.choice_index for s in batch], [s.output_position for s in batch]
            ).tolist()
        ),
    )
    return draw(logits, settings)


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
