"""Rank 0 of a split model, as the engine core sees it: a runner that has the other ranks do the same.

It alone schedules and draws. The other ranks are told each pass and each look at the logits before it makes them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from kernels.batch import StepLayout

from ..batch import ScheduledSequence
from ..config import EngineConfig
from ..errors import ModelError
from ..messages import LoadAdapter, UnloadAdapter
from ..models.config import ModelConfig
from ..runner import ModelRunner, device_of
from ..weights.model_store import resolve_model
from ..weights.source import open_weights
from .crew import Crew
from .group import Group
from .messages import Load, Logits
from .shard import Shard, check_split
from .tables import SentTables


class LeadingRunner(ModelRunner):
    """Every method raises `RanksLost` where another rank cannot go on; then no later step can succeed. While loading each rank
    does by itself what the others do."""

    def __init__(
        self, config: EngineConfig, crew: Crew, group: Group, progress: Callable[[str], None] | None = None
    ) -> None:
        self._crew, self._leading, self._loaded = crew, group, False
        self._tables = SentTables()
        crew.tell(Load(config))
        super().__init__(config, progress, group)
        crew.wait()
        self._loaded = True

    @torch.inference_mode()
    def compute(self, batch: Sequence[ScheduledSequence]) -> StepLayout:
        if self._loaded:
            self._crew.tell(self._tables.step(batch))
        with self._together():
            return super().compute(batch)

    @torch.inference_mode()
    def logits_of(self, rows: torch.Tensor) -> torch.Tensor:
        if self._loaded:
            self._crew.tell(Logits(rows.tolist()))
        with self._together():
            return super().logits_of(rows)

    def load_adapter(self, name: str, folder: str) -> None:
        super().load_adapter(name, folder)
        if not self._loaded:
            return
        self._crew.tell(LoadAdapter(name, folder))
        if (error := self._crew.wait()) is not None:
            self.unload_adapter(name)  # where it was loaded: slots are counted alike on every rank
            raise ModelError(error)

    def unload_adapter(self, name: str) -> None:
        super().unload_adapter(name)
        self._crew.tell(UnloadAdapter(name))
        self._crew.wait()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Whatever goes wrong in the middle of a pass leaves the ranks at different places in it."""
        try:
            yield
        except Exception as error:
            raise self._crew.why(error, self._leading.entered) from error


def lead(config: EngineConfig, progress: Callable[[str], None], lost: Callable[[str], None]) -> LeadingRunner:
    """Starts the other ranks and loads the model on all. Raises `ConfigError` for a split that the heads do not allow."""
    check_split(_config_of(config), config.tensor_parallel_size)
    device = device_of(config)
    progress(f"starting {config.tensor_parallel_size} ranks")
    crew = Crew(config, lost)
    group = Group(Shard(0, config.tensor_parallel_size), device, crew.store, config.distributed_timeout_s)
    return LeadingRunner(config, crew, group, progress)


def _config_of(config: EngineConfig) -> ModelConfig:
    return open_weights(resolve_model(config.model)).config
