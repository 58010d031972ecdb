"""One sequence: a prompt and what has been drawn after it. A request with n choices has n of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .grammars import Grammar


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REFUSED = "refused"
    """The request cannot be served as it stands; nothing was computed for it."""


@dataclass(slots=True, eq=False)
class Sequence:
    """State of the scheduler for one sequence. `token_ids` = prompt + output; `computed` of them have keys and values.

    Invariant: while running, `block_table` covers at least `computed` tokens. `block_hashes` chains the full blocks of
    `token_ids` in order, as far as anybody asked; tokens never change, so it survives preemption.
    """

    id: int
    prompt: list[int]
    params: SamplingParams
    choice_index: int = 0
    root: bytes = b""
    """Where its chain of block hashes begins (block_pool.root_hash): pages are shared only under the same root."""
    adapter: int | None = None
    """The slot of its low-rank adapter."""
    leader: int | None = None
    """A sibling with the same prompt; while that one is still read, this one waits for its pages."""
    order: tuple[int, int] = (0, 0)
    """The scheduler's key: smaller goes first and is preempted last."""
    token_ids: list[int] = field(default_factory=list)
    computed: int = 0
    block_table: list[int] = field(default_factory=list)
    given_back: int = 0
    """Pages at the table's beginning that a sliding window has left behind: not held any more, and never read."""
    block_hashes: list[bytes] = field(default_factory=list)
    committed: int = 0
    """How many pages of the table were offered to the prefix cache."""
    status: Status = Status.WAITING
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at the first admission; recomputation changes nothing."""
    compute_us: int = 0
    preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    prompt_logprobs_told: int = 1
    """Prompt tokens whose log probabilities are known; the first one has none. Recomputation tells none twice."""
    pooled: NDArray[np.float64] | None = None
    """With `pooling`: the sum of what is pooled so far."""
    grammar: Grammar | None = None
    """Where the output stands in its grammar; it goes on with every token, and survives preemption."""
    output: list[int] = field(default_factory=list)
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert self.prompt, "a sequence has at least one prompt token"
        self.token_ids = [*self.prompt, *self.output]
        self.stop_ids = tuple(sorted(self.params.ending_token_ids))

    @property
    def held(self) -> list[int]:
        """Pages that it holds."""
        return self.block_table[self.given_back :]

    @property
    def uncomputed(self) -> int:
        return len(self.token_ids) - self.computed

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.params.prompt_logprobs is not None and self.prompt_logprobs_told < len(self.prompt)

    @property
    def reads_all(self) -> bool:
        """Something is wanted of every token of the prompt, so that none may be found in the cache."""
        return self.wants_prompt_logprobs or self.params.pooling == "mean"

    def append(self, token: int) -> None:
        self.token_ids.append(token)
        self.output.append(token)
        if self.grammar is not None:
            self.grammar.advance(token)

    def is_end(self, token: int) -> bool:
        """An end token, not a part of the text. With a grammar every EOS is one."""
        return token in self.stop_ids or (self.grammar is not None and token in self.params.eos_token_ids)

    def reason_after(self, token: int, max_model_len: int) -> FinishReason | None:
        """Whether the token just appended ends the sequence."""
        if len(self.output) >= self.params.min_tokens and token in self.stop_ids:
            return FinishReason.STOP
        if self.grammar is not None and self.grammar.ended:
            return FinishReason.STOP
        if len(self.output) >= self.params.max_tokens or len(self.token_ids) >= max_model_len:
            return FinishReason.LENGTH
        return None
