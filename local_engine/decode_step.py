"""Steps in which every sequence decodes one token, through buffers that never move, so that a CUDA graph can replay them.

A step of n sequences runs as one of the sizes of `graph_sizes`: the rows beyond n are padding, which reads and writes no page.
What a step needs of the host is one copy of integers, int64 [4 + pages, size]: a column for each sequence, with its token, the
row of the last step whose token it takes instead (-1: none), its position, its slot (-1: padding), and its block table. So the
next step can be launched before the tokens of this one are known here: they are on the device already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from kernels.batch import StepLayout
from kernels.sampling import DrawSettings

from .batch import ScheduledSequence, StepOutput
from .config import BLOCK_SIZE
from .drawing import draw_step
from .logit_rules import changes_logits
from .models.decoder import Decoder
from .sampler import Draw, draw_settings

IDS, FEEDS, POSITIONS, SLOTS, TABLE = range(5)
"""Rows of the integers; the block tables begin at the last one."""
MOST_GRAPH = 512
"""Sequences of the largest graph: beyond it a step computes for so long that its launches are hidden."""

DrawOnDevice = Callable[[torch.Tensor, DrawSettings], torch.Tensor]
"""int32 [rows] on the device; -1 for a row without a token."""


def graph_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then in steps of 8 to 64, of 16 to 256 and of 32."""
    most = min(most, MOST_GRAPH)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, MOST_GRAPH + 1, 32)]
    return tuple(sorted({size for size in sizes if size < most} | {most}))


class Event(Protocol):
    def synchronize(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched. `collect` waits for it, and for nothing launched after it."""

    sequences: tuple[int, ...]
    tokens: torch.Tensor
    """int32, in the host's memory, once `done`."""
    done: Event | None

    def collect(self) -> StepOutput:
        if self.done is not None:
            self.done.synchronize()
        drawn = self.tokens.tolist()
        broken = [sequence for sequence, token in zip(self.sequences, drawn, strict=True) if token < 0]
        return StepOutput([[token] if token >= 0 else [] for token in drawn], broken)


class DecodeStep:
    """`run` computes one size: eagerly at first, by a graph once there is one (cuda_graphs.py)."""

    def __init__(
        self,
        model: Decoder,
        *,
        most: int,
        max_context: int,
        device: torch.device,
        draw: Draw,
        draw_on_device: DrawOnDevice,
    ) -> None:
        self.sizes = graph_sizes(most)
        self.run: Callable[[int], None] = self.compute
        self._model, self._device, self._max_context = model, device, max_context
        self._draw, self._draw_on_device = draw, draw_on_device
        self._pages, largest = -(-max_context // BLOCK_SIZE), self.sizes[-1]
        self._numbers = torch.zeros((TABLE + self._pages) * largest, dtype=torch.int64, device=device)
        self._items = torch.arange(largest, dtype=torch.int32, device=device)[:, None].repeat(1, 4)
        self._last_tokens = torch.zeros(largest, dtype=torch.int64, device=device)
        self._logits = torch.empty(largest, model.config.vocab_size, dtype=torch.float32, device=device)

    def takes(self, batch: Sequence[ScheduledSequence]) -> bool:
        return len(batch) <= self.sizes[-1] and all(
            len(each.token_ids) == 1 and each.samples and each.adapter is None and each.prompt_logprobs_from is None
            for each in batch
        )

    def takes_ahead(self, batch: Sequence[ScheduledSequence]) -> bool:
        """Nothing has to be known of the tokens before: no rule, no log probabilities."""
        return self.takes(batch) and not any(
            each.masks or each.params.logprobs is not None or changes_logits(each.params) for each in batch
        )

    def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
        """A step that `takes` takes."""
        if self.takes_ahead(batch):
            return self.launch(batch, [-1] * len(batch)).collect()
        self._run(batch, [-1] * len(batch))
        rows = range(len(batch) + 1)
        return draw_step(batch, rows, lambda chosen: self._logits[chosen.to(self._device)], self._draw)

    @torch.inference_mode()
    def launch(self, batch: Sequence[ScheduledSequence], feeds: Sequence[int]) -> Flight:
        """A step that `takes_ahead` takes, not waited for. `feeds`: for each sequence the row of the last launch whose token it
        goes on with; -1: it brings its own."""
        self._run(batch, feeds)
        settings = draw_settings(
            [each.params for each in batch],
            [each.choice_index for each in batch],
            [each.output_position for each in batch],
        )
        tokens = self._draw_on_device(self._logits[: len(batch)], settings)
        self._last_tokens[: len(batch)] = tokens.clamp(min=0)
        on_gpu = self._device.type == "cuda"
        kept = torch.empty(len(batch), dtype=torch.int32, pin_memory=on_gpu)
        kept.copy_(tokens, non_blocking=True)
        done = None
        if on_gpu:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return Flight(tuple(each.sequence_id for each in batch), kept, done)

    def _run(self, batch: Sequence[ScheduledSequence], feeds: Sequence[int]) -> None:
        size = next(size for size in self.sizes if size >= len(batch))
        self.load(batch, size, feeds)
        self.run(size)

    def pad(self, size: int) -> None:
        """Leaves nothing but padding to compute."""
        self.load([], size, [])

    def load(self, batch: Sequence[ScheduledSequence], size: int, feeds: Sequence[int]) -> None:
        """Puts a batch into the buffers, padded to `size`, by one copy."""
        widest = max((-(-(each.start + 1) // BLOCK_SIZE) for each in batch), default=0)
        host = torch.zeros(TABLE + widest, size, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        numbers = host.numpy()
        numbers[FEEDS], numbers[SLOTS] = -1, -1
        for column, (each, feed) in enumerate(zip(batch, feeds, strict=True)):
            page, row = divmod(each.start, BLOCK_SIZE)
            table = np.asarray(each.block_table[: page + 1], dtype=np.int64)
            numbers[TABLE : TABLE + page + 1, column] = table
            numbers[:TABLE, column] = each.token_ids[0], feed, each.start, table[page] * BLOCK_SIZE + row
        self._numbers[: host.numel()].copy_(host.view(-1), non_blocking=True)

    def compute(self, size: int) -> None:
        """What a graph captures: from the integers to the logits, without a word from the host."""
        numbers = self._numbers[: (TABLE + self._pages) * size].view(TABLE + self._pages, size)
        feeds, live = numbers[FEEDS], numbers[SLOTS] >= 0
        fed = self._last_tokens.index_select(0, feeds.clamp(min=0))
        items = self._items[:size]
        items[:, 2], items[:, 3] = live, numbers[POSITIONS]
        layout = StepLayout(
            query_start=list(range(size + 1)),
            context=[self._max_context] * size,
            positions=numbers[POSITIONS],
            slots=numbers[SLOTS],
            block_tables=numbers[TABLE:].t(),
            decoding=items,
        )
        self._model.compute(torch.where(feeds >= 0, fed, numbers[IDS]), layout)
        self._logits[:size] = self._model.first_logits(size)
