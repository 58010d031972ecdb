"""The model runner: weights, the KV pool and one step of a mixed batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from local_engine.batch import BLOCK_SIZE, ScheduledSequence, StepOutput
from local_engine.config import EngineConfig


class ModelRunner:
    """Loads the model that `config` names, owns its KV pool, executes steps. One thread calls it."""

    block_size = BLOCK_SIZE
    num_blocks: int
    vocab_size: int
    max_model_len: int

    def __init__(self, config: EngineConfig, progress: Callable[[str], None] | None = None) -> None:
        raise RuntimeError("being built")

    def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
        raise RuntimeError("being built")
