"""From logits to tokens, for a whole batch: what requests ask for (logit_rules.py), then the kernels' draw.

After the rules greedy lines are done; the others go by temperature, min_p, top_k, top_p, and inverse CDF over the vocabulary in
the order of token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kernels.sampling import DrawSettings, draw_reference

from .logit_rules import Line, apply_rules
from .philox import uniforms
from .sampling_params import SamplingParams
from .token_logprobs import TokenLogprobs

Draw = Callable[[torch.Tensor, DrawSettings], list[int | None]]


def sample(logits: torch.Tensor, lines: Sequence[Line], draw: Draw = draw_reference) -> list[int | None]:
    """One token per row of `logits` (float32 [len(lines), vocab], may be overwritten); None where they hold NaN or only -inf."""
    apply_rules(logits, lines)
    settings = draw_settings(
        [line.params for line in lines], [line.choice_index for line in lines], [line.output_position for line in lines]
    )
    return draw(logits, settings)


def draw_settings(params: Sequence[SamplingParams], choices: list[int], positions: list[int]) -> DrawSettings:
    """For the token at `positions[i]` of choice `choices[i]` of each request."""
    uniform = [0.0] * len(params)
    if any(each.temperature > 0.0 for each in params):
        uniform = uniforms([each.seed for each in params], choices, positions).tolist()
    return DrawSettings(
        temperature=[each.temperature for each in params],
        top_k=[each.top_k for each in params],
        top_p=[each.top_p for each in params],
        min_p=[each.min_p for each in params],
        uniform=uniform,
    )


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], best: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of float32 `logits` [rows, vocab] the log probabilities of its token and of its `best[row]` best ones."""
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    normaliser = logits.logsumexp(dim=-1, keepdim=True)
    ranks = ((logits > chosen).sum(dim=-1) + 1).tolist()
    own = (chosen - normaliser).squeeze(1).tolist()
    widest = min(max(best, default=0), logits.shape[1])
    top = logits.topk(widest, dim=-1)
    ids, values = top.indices.tolist(), (top.values - normaliser).tolist()
    return [
        TokenLogprobs([token, *ids[row][: best[row]]], [own[row], *values[row][: best[row]]], ranks[row])
        for row, token in enumerate(tokens)
    ]
