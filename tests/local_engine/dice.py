"""A runner whose logits are noise that depends on every token before, read back through the pages: for laws of drawing."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from kernels.sampling import draw_reference
from local_engine.adapters import Adapter
from local_engine.batch import ScheduledSequence, StepOutput
from local_engine.config import BLOCK_SIZE, EngineConfig
from local_engine.drawing import draw_step
from local_engine.engine_core import EngineCore
from local_engine.messages import Update

from .tiny import VOCAB


def dice_logits(tokens: Sequence[int]) -> torch.Tensor:
    """float32 [VOCAB] of the token after `tokens`."""
    seed = int.from_bytes(hashlib.blake2b(repr(list(tokens)).encode(), digest_size=4).digest(), "little")
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(VOCAB, dtype=np.float32) * 3)


class DiceRunner:
    vocab_size = VOCAB
    window: int | None = None
    launcher = None

    def __init__(
        self, num_blocks: int, max_model_len: int, memory: int | None = None, saying: bytes | None = None
    ) -> None:
        """`memory`: logits depend on so many of the last tokens only, so that greedy output runs in circles. `saying`: what
        has begun with it likes to go on with it."""
        self.memory, self.saying = memory, saying
        self.adapters: dict[str, Adapter] = {}
        self.num_blocks, self.max_model_len = num_blocks, max_model_len
        self.steps = 0
        self._pages: list[list[int | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]

    def load_adapter(self, name: str, folder: str) -> None:
        raise NotImplementedError

    def unload_adapter(self, name: str) -> None:
        raise NotImplementedError

    def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
        self.steps += 1
        query_start = [0]
        logits: list[torch.Tensor] = []
        for scheduled in batch:
            for offset, token in enumerate(scheduled.token_ids):
                block, row = divmod(scheduled.start + offset, BLOCK_SIZE)
                self._pages[scheduled.block_table[block]][row] = token
            query_start.append(query_start[-1] + len(scheduled.token_ids))
        for scheduled in batch:
            tokens = self._read(scheduled)
            ends = range(scheduled.start + 1, len(tokens) + 1)
            logits += [self._logits(tokens[:end]) for end in ends]
        return draw_step(batch, query_start, lambda rows: torch.stack([logits[row] for row in rows]), draw_reference)

    def _logits(self, tokens: list[int]) -> torch.Tensor:
        logits = dice_logits(tokens[-self.memory :] if self.memory else tokens)
        for said in range(len(self.saying or b"")):
            if self.saying and tokens[len(tokens) - said :] == list(self.saying[:said]):
                logits[self.saying[said]] += 5 + 5 * said
        return logits

    def _read(self, scheduled: ScheduledSequence) -> list[int]:
        length = scheduled.start + len(scheduled.token_ids)
        read = [self._pages[scheduled.block_table[at // BLOCK_SIZE]][at % BLOCK_SIZE] for at in range(length)]
        tokens = [token for token in read if token is not None]
        assert len(tokens) == length, "a page was read before it was written"
        return tokens


def drained(core: EngineCore) -> Iterator[Update]:
    """Steps until nothing is left, waiting for grammars only where nothing else is to be done."""
    while core.has_work or core.held:
        if not core.has_work:
            with contextlib.suppress(Exception):
                core.held[0].compilation.grammar()
        yield from core.step()


def make_runner(config: EngineConfig, progress: Callable[[str], None]) -> DiceRunner:
    return DiceRunner(config.num_blocks_override or 64, config.max_model_len or 512)


if __name__ == "__main__":
    from local_engine.core_process import main

    sys.exit(main(make_runner))
