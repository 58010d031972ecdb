"""Block tables as they travel: a rank keeps those of the last step, and is told only what came since."""

from __future__ import annotations

from collections.abc import Sequence

from ..batch import ScheduledSequence
from ..sampling_params import SamplingParams
from .messages import Step, Work

UNASKED = SamplingParams()
"""Who draws is rank 0."""
Tables = dict[int, list[int]]
"""By sequence, of the last step."""


class SentTables:
    """Rank 0's side."""

    def __init__(self) -> None:
        self._last: Tables = {}

    def step(self, batch: Sequence[ScheduledSequence]) -> Step:
        now = {each.sequence_id: list(each.block_table) for each in batch}
        works = []
        for each in batch:
            table, last = now[each.sequence_id], self._last.get(each.sequence_id, [])
            kept = len(last) if table[: len(last)] == last else 0
            works.append(Work(each.sequence_id, list(each.token_ids), each.start, kept, table[kept:], each.adapter))
        self._last = now
        return Step(works)


class KeptTables:
    """The other ranks'. Every step is heard, in order."""

    def __init__(self) -> None:
        self._last: Tables = {}

    def batch(self, step: Step) -> list[ScheduledSequence]:
        self._last = {
            work.sequence: [*self._last.get(work.sequence, ())[: work.kept], *work.blocks] for work in step.works
        }
        return [
            ScheduledSequence(
                work.sequence,
                work.token_ids,
                work.start,
                self._last[work.sequence],
                False,
                UNASKED,
                adapter=work.adapter,
            )
            for work in step.works
        ]
