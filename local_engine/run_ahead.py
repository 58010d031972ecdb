"""Launching a step before the tokens of the one before are known here, so that a GPU never waits for the host.

While a step flies, the next one is launched for every sequence that its limits let go on: where its token will stand is known,
the token itself is on the device. Whoever then turns out to have ended has a row in it that nobody reads. What it wrote does no
harm: steps follow one another on the device, so a page that was given away is written by its new owner later, and read later
still.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from .batch import ScheduledSequence, StepOutput
from .runner_protocol import Flight, Launcher
from .scheduler import Scheduler, Share
from .sequence import Sequence, Status


@dataclass(frozen=True, slots=True)
class _Flying:
    shares: list[Share]
    flight: Flight


class RunAhead:
    def __init__(self, launcher: Launcher, scheduler: Scheduler) -> None:
        self._launcher, self._scheduler = launcher, scheduler
        self._flying: _Flying | None = None

    def shares(self) -> list[Share]:
        """Of the step that was launched ahead: whoever lives still. Empty where there is none."""
        if self._flying is None:
            return []
        alive = [share for share in self._flying.shares if share.sequence.status is Status.RUNNING]
        if not alive:
            self._flying = None
        return alive

    def execute(self, shares: list[Share], batch: Seq[ScheduledSequence]) -> StepOutput | None:
        """The step that `shares` gave, or one that was scheduled just now; None: not by a launch. Launches the next one first."""
        flying, self._flying = self._flying, None
        if flying is not None:
            place = {id(share): row for row, share in enumerate(flying.shares)}
            flight, rows = flying.flight, [place[id(share)] for share in shares]
        elif self._launcher.takes_ahead(batch):
            rows = list(range(len(batch)))
            flight = self._launcher.launch(batch, [-1] * len(batch))
        else:
            return None
        self._flying = self._launch_next(shares, rows)
        output = flight.collect()
        return StepOutput([output.tokens[row] for row in rows], output.nan_sequences)

    def _launch_next(self, shares: list[Share], rows: list[int]) -> _Flying | None:
        scheduler = self._scheduler
        if len(scheduler.running) != len(shares) or scheduler.could_admit:
            return None
        if any(share.sequence.grammar is not None for share in shares):  # it has to see the token first
            return None
        going = [
            (share.sequence, row) for share, row in zip(shares, rows, strict=True) if self._goes_on(share.sequence)
        ]
        batch = [_after(sequence) for sequence, _ in going]
        sequences = [sequence for sequence, _ in going]
        if not going or not self._launcher.takes_ahead(batch) or not scheduler.reserve_next(sequences):
            return None
        flight = self._launcher.launch(batch, [row for _, row in going])
        return _Flying([Share(sequence, 1) for sequence in sequences], flight)

    def _goes_on(self, sequence: Sequence) -> bool:
        """Unless the token under way is an end."""
        most = min(len(sequence.prompt) + sequence.params.max_tokens, self._scheduler.max_model_len)
        return len(sequence.token_ids) + 1 < most


def _after(sequence: Sequence) -> ScheduledSequence:
    """What computes its next token, whose number the host does not know: it is fed."""
    return ScheduledSequence(
        sequence_id=sequence.id,
        token_ids=[0],
        start=sequence.computed + 1,
        block_table=sequence.block_table,
        samples=True,
        params=sequence.params,
        choice_index=sequence.choice_index,
        output_position=len(sequence.output) + 1,
        adapter=sequence.adapter,
    )
