"""What the scheduler hands the runner for one step, and what it gets back.

There are no phases: a step is a list of sequences, each with the tokens to compute now. A prompt being read in chunks, a
prompt's last chunk and a sequence that only decodes (one token) differ in `len(token_ids)` and `samples` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .sampling_params import SamplingParams
from .token_logprobs import TokenLogprobs

Vector = NDArray[np.float32]
Mask = NDArray[np.int32]
"""One bit per token of the vocabulary, lowest first: set where a grammar allows it."""


@dataclass(slots=True)
class ScheduledSequence:
    """One sequence's share of a step.

    `token_ids` are the tokens whose keys and values this step computes, the first of them at position `start`.
    `block_table` has a block for every position up to `start + len(token_ids) - 1`: position `p` lies in block
    `block_table[p // 16]`, row `p % 16`. With `samples` true the last of the tokens is the sequence's newest, and the step
    draws the next token from its logits. `output_position` is the index, among the sequence's output tokens, of the token
    that is drawn (0 for the first): it addresses the random stream, so that a token does not depend on when or beside
    whom it is computed. `prompt_token_ids` and `output_token_ids` (everything drawn so far) are read only by the
    penalties and by bad_words; the runner never changes them.

    The last `len(drafts)` of `token_ids` are guesses: a token is drawn after the newest token and after each of them, and they
    hold as far as each was drawn. `masks` has one entry for each of these draws, or none at all. `prompt_logprobs_from`: log
    probabilities of the prompt's tokens are wanted from this position on, as far as this step's tokens tell them.
    """

    sequence_id: int
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    samples: bool
    params: SamplingParams
    choice_index: int = 0
    output_position: int = 0
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    drafts: Sequence[int] = ()
    masks: Sequence[Mask] = ()
    prompt_logprobs_from: int | None = None
    adapter: int | None = None
    """The slot of its low-rank adapter (adapters.py)."""


@dataclass(slots=True)
class StepOutput:
    """One entry per scheduled sequence, in the same order.

    `tokens[i]` is empty for a sequence that did not sample, and for one whose logits held a NaN or were all -inf; the latter
    are listed in `nan_sequences` by `sequence_id` and fail alone. Otherwise it holds the token drawn, and before it the drafts
    that held. `logprobs[i]` has an entry for each of them where they were asked for; `prompt_logprobs[i]` one for each prompt
    token that became known. The last two may be left empty where nobody asks.
    """

    tokens: list[list[int]]
    nan_sequences: list[int] = field(default_factory=list)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: dict[int, Vector] = field(default_factory=dict)
    """For sequences with `pooling`: the last token's vector if it is among this step's, or the sum over this step's tokens. All
    three by the sequence's place in the batch."""
