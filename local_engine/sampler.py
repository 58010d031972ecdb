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
from .token_logprobs import TokenLogprobs

Draw = Callable[[torch.Tensor, DrawSettings], list[int | None]]


def sample(logits: torch.Tensor, lines: Sequence[Line], draw: Draw = draw_reference) -> list[int | None]:
    """One token per row of `logits` (float32 [len(lines), vocab], may be overwritten); None where they hold NaN or only -inf."""
    apply_rules(logits, lines)
    params = [line.params for line in lines]
    settings = DrawSettings(
        temperature=[p.temperature for p in params],
        top_k=[p.top_k for p in params],
        top_p=[p.top_p for p in params],
        min_p=[p.min_p for p in params],
        uniform=list(
            uniforms(
                [p.seed for p in params], [s.choice_index for s in lines], [s.output_position for s in lines]
            ).tolist()
        ),
    )
    return draw(logits, settings)


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
