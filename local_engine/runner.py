"""The model runner: weights, the KV pool and one step of a mixed batch.

Imports torch, numpy, numba or triton (by way of kernels) and, for the files themselves, safetensors or gguf; so it runs on a
bare GPU machine.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from pathlib import Path

import numpy as np
import torch

from kernels.batch import StepLayout
from kernels.dispatch import choose_operations, compiles_first
from kernels.operations import Operations

from .adapters import Adapter, load_adapter
from .batch import ScheduledSequence, StepOutput
from .config import BLOCK_SIZE, ROUNDED, STORED, EngineConfig
from .drawing import draw_step, pool_step
from .errors import ConfigError, OutOfMemory
from .kv_cache import allocate, plan_blocks
from .models.config import ModelConfig
from .models.decoder import Decoder
from .models.family import Family
from .models.registry import family_of
from .weights.model_store import resolve_model
from .weights.rounding import RoundedSource
from .weights.source import WeightSource, open_weights

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class ModelRunner:
    """Loads the model that `config` names, owns its KV pool, executes steps. One thread calls it.

    `progress` receives short texts while weights load. Raises `ModelError`, `ConfigError` or `OutOfMemory` at construction.
    """

    block_size = BLOCK_SIZE

    def __init__(self, config: EngineConfig, progress: Callable[[str], None] | None = None) -> None:
        began = time.monotonic()
        say = progress or (lambda text: None)
        self.device = _device(config)
        threads = config.cpu_threads or usable_cores()
        torch.set_num_threads(threads)
        say("opening the weights")
        source = _source(config)
        model = source.config
        family = family_of(model)
        self.vocab_size = model.vocab_size
        self.max_model_len = _context(config, model)
        dtype = _dtype(config, model, self.device)
        if compiles_first(self.device, config.kernels):
            say("compiling the kernels, as the first start on a machine does: about half a minute")
        try:
            operations = choose_operations(
                self.device,
                dtype,
                threads=threads,
                capacity=config.max_num_batched_tokens,
                max_context=self.max_model_len,
                widths=_widths(model, family),
                head_dim=model.head_dim,
                bfloat16=source.stores_bfloat16 and config.dtype in ("auto", "bfloat16"),
                path=config.kernels,
            )
        except ValueError as error:
            raise ConfigError(f"--kernels {config.kernels}: {error}; use --kernels auto") from error
        self._draw = operations.draw
        kv_dtype = _kv_dtype(config, model, operations.dtype, self.device)
        try:
            self._model = Decoder(
                source,
                family,
                operations,
                max_context=self.max_model_len,
                device=self.device,
                threads=threads,
                progress=say,
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise OutOfMemory(
                f"the weights do not fit into memory ({error}): serve a smaller or quantised model"
            ) from error
        self.window = self._model.window
        self._max_rank, self._dtype = config.max_lora_rank, operations.dtype
        self.adapters: dict[str, Adapter] = {}
        self._slots = count()
        for name, folder in config.lora_modules:
            self.load_adapter(name, folder)
        self.num_blocks = plan_blocks(config, model, kv_dtype, self.device)
        cache = allocate(model, self.num_blocks, kv_dtype, self.device)
        self._model.attach(cache)
        self.precision = (
            f"weights {source.precision} {_held(source, operations)}, {operations.name}, "
            f"KV cache {str(kv_dtype).removeprefix('torch.')} ({self.num_blocks} blocks of {BLOCK_SIZE})"
        )
        """For the start-up line: what numbers this process computes with."""
        logger.info("%s: %s; loaded in %.1f s", config.model, self.precision, time.monotonic() - began)

    @torch.inference_mode()
    def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
        """Computes every sequence's tokens in one pass and draws a token where one is due."""
        ids, layout = lay_out(batch, self.device)
        self._model.compute(ids, layout)
        output = draw_step(batch, layout.query_start, self._model.logits, self._draw)
        output.pooled = pool_step(batch, layout.query_start, self._model.normed)
        return output

    def load_adapter(self, name: str, folder: str) -> None:
        """Under a name that is not taken. Raises `ModelError`, and nothing has changed."""
        self.adapters[name] = load_adapter(
            name,
            Path(folder),
            next(self._slots),
            self._model.linears,
            max_rank=self._max_rank,
            device=self.device,
            dtype=self._dtype,
        )

    def unload_adapter(self, name: str) -> None:
        adapter = self.adapters.pop(name)
        for linear in self._model.linears:
            linear.adapters.pop(adapter.slot, None)

    @torch.inference_mode()
    def logits(self, batch: Sequence[ScheduledSequence]) -> torch.Tensor:
        """float32 [tokens of the batch, vocab]: every token's logits, for comparisons with an oracle."""
        ids, layout = lay_out(batch, self.device)
        self._model.compute(ids, layout)
        return self._model.logits(torch.arange(layout.tokens))


def _source(config: EngineConfig) -> WeightSource:
    """The file's weights, rounded where --quantization asks for it. Raises `ModelError` or `ConfigError`."""
    source, how = open_weights(resolve_model(config.model)), config.quantization
    if how is None or (how in STORED and source.stored_as == how):
        return source
    if how not in ROUNDED:
        raise ConfigError(
            f"--quantization {how}: these weights are {source.precision}; leave the flag out, or round them by "
            f"{', '.join(ROUNDED)}"
        )
    if source.stored_as not in (None, "gguf"):
        raise ConfigError(
            f"--quantization {how}: these weights are {source.precision} already; leave the flag out, or serve the plain model"
        )
    return RoundedSource(source, how)


def _held(source: WeightSource, operations: Operations) -> str:
    """What became of quantised weights at load."""
    if source.stored_as in (None, "gguf"):
        return "at their own bits"
    return f"held as {' and '.join(sorted(operations.held))}"


def _widths(model: ModelConfig, family: Family) -> list[int]:
    """Of the inputs of its matrices."""
    experts = [family.mixture.inner_size] if family.mixture is not None else []
    return [model.hidden_size, model.heads * model.head_dim, model.intermediate_size, *experts]


def lay_out(batch: Sequence[ScheduledSequence], device: torch.device) -> tuple[torch.Tensor, StepLayout]:
    """Token ids [T] on the host, and the step's layout on `device`."""
    counts = [len(sequence.token_ids) for sequence in batch]
    contexts = [sequence.start + count for sequence, count in zip(batch, counts, strict=True)]
    tables = np.zeros((len(batch), max(-(-context // BLOCK_SIZE) for context in contexts)), dtype=np.int64)
    for row, (sequence, context) in enumerate(zip(batch, contexts, strict=True)):
        width = -(-context // BLOCK_SIZE)
        tables[row, :width] = sequence.block_table[:width]
    query_start = [0, *accumulate(counts)]
    owner = np.repeat(np.arange(len(batch)), counts)
    first = np.array([sequence.start for sequence in batch]) - np.array(query_start[:-1])
    positions = np.arange(query_start[-1]) + first[owner]
    slots = tables[owner, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    ids = torch.tensor([token for sequence in batch for token in sequence.token_ids], dtype=torch.int64)
    layout = StepLayout(
        query_start=query_start,
        context=contexts,
        positions=torch.from_numpy(positions).to(device),
        slots=torch.from_numpy(slots).to(device),
        block_tables=torch.from_numpy(tables).to(device),
        adapters=_adapters(batch),
    )
    return ids, layout


def _adapters(batch: Sequence[ScheduledSequence]) -> tuple[int | None, ...]:
    slots = tuple(sequence.adapter for sequence in batch)
    return slots if any(slot is not None for slot in slots) else ()


def usable_cores() -> int:
    """Cores that this process may use: its affinity, or its cgroup's quota where that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores


def _device(config: EngineConfig) -> torch.device:
    if config.tensor_parallel_size > 1:
        raise ConfigError("--tensor-parallel-size above 1 is not supported yet: start one engine per device instead")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: torch sees no GPU here (a CPU build of torch, or no driver); use --device cpu"
        )
    return torch.device(config.device)


def _context(config: EngineConfig, model: ModelConfig) -> int:
    longest = model.longest_context
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ConfigError(f"--max-model-len {config.max_model_len} is more than the model's {longest} positions")
    return config.max_model_len or longest


def _dtype(config: EngineConfig, model: ModelConfig, device: torch.device) -> torch.dtype:
    """The activations' type on `device`. The CPU's kernels compute in float32, wider than any stored type."""
    if device.type == "cpu":
        return torch.float32
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.bfloat16 if model.dtype == "float32" else DTYPES.get(model.dtype, torch.bfloat16)


def _kv_dtype(config: EngineConfig, model: ModelConfig, activations: torch.dtype, device: torch.device) -> torch.dtype:
    """As asked for; else as --dtype says; else, on the CPU, bfloat16 (half the memory to read at every step), unless the
    weights are float32 themselves.
    """
    asked = config.kv_cache_dtype if config.kv_cache_dtype != "auto" else config.dtype
    if asked == "auto":
        narrow = device.type == "cpu" and model.dtype != "float32"
        return torch.bfloat16 if narrow else activations
    if asked not in DTYPES or (device.type == "cpu" and asked == "float16"):
        raise ConfigError(f"a KV cache of {asked} is not supported on {device.type}: use float32 or bfloat16")
    return DTYPES[asked]
