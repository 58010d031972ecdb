"""The seam to the model: what the engine asks of a runner, and of one that can launch a step ahead."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

from .batch import ScheduledSequence, StepOutput

if TYPE_CHECKING:
    from .adapters import Adapter


class Flight(Protocol):
    def collect(self) -> StepOutput:
        """Waits for this step alone."""


class Launcher(Protocol):
    """A runner's, where it can (decode_step.py)."""

    def takes_ahead(self, batch: Seq[ScheduledSequence]) -> bool:
        """Whether it can launch such a step."""

    def launch(self, batch: Seq[ScheduledSequence], feeds: Seq[int]) -> Flight:
        """`feeds`: the row of the last launch whose token a sequence goes on with; -1: it brings its own."""


class Runner(Protocol):
    """runner.py; parallel/leader.py for a model that is split."""

    num_blocks: int
    vocab_size: int
    max_model_len: int
    window: int | None
    """Tokens that every layer looks back on, the current one included; None where some layer sees everything."""

    adapters: dict[str, Adapter]
    """By name; a request names only these."""

    def load_adapter(self, name: str, folder: str) -> None:
        """Raises `ModelError`."""

    def unload_adapter(self, name: str) -> None: ...

    @property
    def launcher(self) -> Launcher | None:
        """None where a step is computed while it is waited for."""

    def execute(self, batch: Seq[ScheduledSequence]) -> StepOutput: ...
