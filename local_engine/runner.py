"""The model runner: weights, the KV pool and one step of a mixed batch.

Imports torch, numpy, numba or triton (by way of kernels) and, for the files themselves, safetensors or gguf; so it runs on a
bare GPU machine.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.batch import StepLayout
from kernels.dispatch import choose_operations, compiles_first
from kernels.fp8 import CacheScales
from kernels.operations import Operations

from .adapters import Adapter, load_adapter
from .batch import ScheduledSequence, StepOutput
from .config import BLOCK_SIZE, ROUNDED, STORED, EngineConfig
from .cuda_graphs import decode_step, record
from .decode_step import DecodeStep
from .device_memory import full_batch, memory_lines, peak_of, pool_bytes
from .drawing import draw_step, pool_step
from .errors import ConfigError, ModelError, OutOfMemory
from .kv_cache import FP8, allocate, block_bytes, cache_dtype, cpu_budget, plan_blocks
from .kv_scales import measured_scales, stored_scales
from .models.config import ModelConfig
from .models.decoder import Decoder
from .models.family import Family
from .models.registry import family_of
from .parallel.cut import Cut, cut_model
from .parallel.group import Group
from .sampler import draw_settings
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

    def __init__(
        self,
        config: EngineConfig,
        progress: Callable[[str], None] | None = None,
        group: Group | None = None,
    ) -> None:
        """`group`: the ranks of a model that is split, of which each has a runner."""
        began = time.monotonic()
        say = progress or (lambda text: None)
        self.device = device_of(config, group.shard.rank if group is not None else 0)
        threads = config.cpu_threads or max(1, usable_cores() // config.processes)
        torch.set_num_threads(threads)
        say("opening the weights")
        source = _source(config)
        model = source.config
        family = family_of(model)
        cut = cut_model(group.shard, source, family) if group is not None else None
        self.vocab_size = model.vocab_size
        self.max_model_len = _context(config, model)
        if compiles_first(self.device, config.kernels):
            say("compiling the kernels, as the first start on a machine does: about half a minute")
        operations = self._operations(config, source, threads, _widths(model, family, cut))
        self._draw = operations.draw
        kv_dtype = cache_dtype(config, model, operations, self.device)
        self._model = self._decoder(source, family, operations, threads, say, group)
        self.window = self._model.window
        self._max_rank, self._dtype = config.max_lora_rank, operations.dtype
        self._capacity = config.max_num_batched_tokens
        self._decode: DecodeStep | None = None
        self.adapters: dict[str, Adapter] = {}
        for name, folder in config.lora_modules:
            self.load_adapter(name, folder)
        if group is not None:
            group.least(0)  # what the others load is no longer free
        heads = group.shard.kv_heads(model) if group is not None else range(model.kv_heads)
        scales, of_scales = self._cache_scales(source, heads, kv_dtype)
        step = None
        if self.device.type == "cuda" and not config.enforce_eager and group is None:
            step = decode_step(config, self._model, operations, self.max_model_len, self.device)
        self._open_pool(config, kv_dtype, scales, group)
        self.precision = (
            f"weights {source.precision} {_held(source, operations)}, {operations.name}, "
            f"KV cache {str(kv_dtype).removeprefix('torch.')}{of_scales} ({self.num_blocks} blocks of {BLOCK_SIZE})"
        )
        """For the start-up line: what numbers this process computes with."""
        if step is not None:
            record(step, self.device, say)
            self._decode = step
        logger.info("%s: %s; loaded in %.1f s", config.model, self.precision, time.monotonic() - began)

    def _operations(self, config: EngineConfig, source: WeightSource, threads: int, widths: list[int]) -> Operations:
        """The kernels for this model. `widths`: of the inputs of its matrices."""
        rounds = config.dtype in ("auto", "bfloat16")
        try:
            return choose_operations(
                self.device,
                _dtype(config, source.config, self.device),
                threads=threads,
                capacity=config.max_num_batched_tokens,
                max_context=self.max_model_len,
                widths=widths,
                head_dim=source.config.head_dim,
                bfloat16=source.stores_bfloat16 and rounds,
                int8=source.stored_as is not None and rounds,
                path=config.kernels,
            )
        except ValueError as error:
            raise ConfigError(f"--kernels {config.kernels}: {error}; use --kernels auto") from error

    def _decoder(
        self,
        source: WeightSource,
        family: Family,
        operations: Operations,
        threads: int,
        progress: Callable[[str], None],
        group: Group | None,
    ) -> Decoder:
        """The model with its weights loaded."""
        try:
            return Decoder(
                source,
                family,
                operations,
                max_context=self.max_model_len,
                device=self.device,
                threads=threads,
                progress=progress,
                group=group,
            )
        except (MemoryError, ValueError, IndexError, TypeError, RuntimeError) as error:
            raise _unloadable(error) from error

    def _open_pool(
        self, config: EngineConfig, kv_dtype: torch.dtype, scales: list[CacheScales] | None, group: Group | None
    ) -> None:
        """Gives the model the KV pool: as many blocks as there is memory for, on each rank as on the one with the least."""
        own = self._model.config
        self.num_blocks = plan_blocks(config, own, kv_dtype, self._budget(config, own))
        if group is not None:
            self.num_blocks = group.least(self.num_blocks)
        cache = allocate(own, self.num_blocks, kv_dtype, self.device)
        self._model.attach(replace(cache, scales=scales))
        for line in memory_lines(
            self.device.type, self.num_blocks, block_bytes(own, kv_dtype), self.max_model_len, self.window
        ):
            logger.info(line)

    def _budget(self, config: EngineConfig, model: ModelConfig) -> int:
        """Bytes for the KV pool: on a GPU what a step of full size leaves."""
        if config.kv_cache_memory_bytes is not None:
            return config.kv_cache_memory_bytes
        if self.device.type != "cuda":
            return cpu_budget(config)
        self._model.attach(allocate(model, 1, self._dtype, self.device))
        batch = full_batch(config.max_num_batched_tokens, config.max_num_seqs, self.max_model_len)
        memory = peak_of(lambda: self._full_step(batch), self.device)
        eager = config.enforce_eager or config.tensor_parallel_size > 1
        return pool_bytes(memory, config.gpu_memory_utilization, model.layers, eager=eager)

    def _full_step(self, batch: Sequence[ScheduledSequence]) -> None:
        """As `execute`, for every rank: one that gets no logits draws nothing."""
        layout = self.compute(batch)
        logits = self.logits_of(torch.tensor(layout.query_start[1:]) - 1)
        if len(logits) == len(batch):
            self._draw(logits, draw_settings([each.params for each in batch], [0] * len(batch), [0] * len(batch)))

    def _cache_scales(
        self, source: WeightSource, heads: range, kv_dtype: torch.dtype
    ) -> tuple[list[CacheScales] | None, str]:
        """Of an fp8 cache, and a word on them for the start-up line."""
        if kv_dtype != FP8:
            return None, ""
        if scales := stored_scales(source, heads, self.device):
            return scales, " with the checkpoint's scales"
        most = min(self._capacity, self.max_model_len)
        return measured_scales(self._model, self._dtype, self.device, most), " with measured scales"

    @property
    def launcher(self) -> DecodeStep | None:
        """Where the next step can be launched before this one's tokens are known."""
        return self._decode

    @torch.inference_mode()
    def execute(self, batch: Sequence[ScheduledSequence]) -> StepOutput:
        """Computes every sequence's tokens in one pass and draws a token where one is due."""
        if self._decode is not None and self._decode.takes(batch):
            return self._decode.execute(batch)
        layout = self.compute(batch)
        output = draw_step(batch, layout.query_start, self.logits_of, self._draw)
        output.pooled = pool_step(batch, layout.query_start, self._model.normed)
        return output

    @torch.inference_mode()
    def compute(self, batch: Sequence[ScheduledSequence]) -> StepLayout:
        """The pass alone, without drawing."""
        ids, layout = lay_out(batch, self.device)
        self._model.compute(ids, layout)
        return layout

    @torch.inference_mode()
    def logits_of(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [len(rows), vocab] for rows of the step that was computed last; the next call may overwrite it."""
        return self._model.logits(rows)

    def load_adapter(self, name: str, folder: str) -> None:
        """Under a name that is not taken. Raises `ModelError`, and nothing has changed."""
        taken = {adapter.slot for adapter in self.adapters.values()}
        self.adapters[name] = load_adapter(
            name,
            Path(folder),
            next(slot for slot in count() if slot not in taken),
            self._model.linears,
            max_rank=self._max_rank,
            device=self.device,
            dtype=self._dtype,
        )

    def unload_adapter(self, name: str) -> None:
        adapter = self.adapters.pop(name)
        for linear in self._model.linears:
            linear.adapters.remove(adapter.slot)

    @torch.inference_mode()
    def logits(self, batch: Sequence[ScheduledSequence]) -> torch.Tensor:
        """float32 [tokens of the batch, vocab]: every token's logits, for comparisons with an oracle."""
        return self.logits_of(torch.arange(self.compute(batch).tokens)).clone()


def _unloadable(error: Exception) -> ModelError:
    """torch raises its own error on a GPU, and on the CPU a RuntimeError of its allocator."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
        return OutOfMemory(f"the weights do not fit into memory ({error}): serve a smaller or quantised model")
    return ModelError(
        f"the weights are not of the sizes that the model's configuration names ({error}): download both again"
    )


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


def _widths(model: ModelConfig, family: Family, cut: Cut | None) -> list[int]:
    """Of the inputs of its matrices, or of the parts that a rank has of them."""
    if cut is not None:
        parts = (cut.attended, cut.inner, cut.expert_inner)
        return [model.hidden_size, *(len(part) for part in parts if part)]
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
        positions=_moved(positions, device),
        slots=_moved(slots, device),
        block_tables=_moved(tables, device),
        adapters=_adapters(batch),
    )
    return ids, layout


def _moved(values: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """On a GPU in time for what is launched next, not waited for."""
    host = torch.from_numpy(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


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


def device_of(config: EngineConfig, rank: int = 0) -> torch.device:
    """The device that a rank computes on; GPUs are counted from the one that --device names. Raises `ConfigError`."""
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: torch sees no GPU here (a CPU build of torch, or no driver); use --device cpu"
        )
    if config.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    first = int(config.device.partition(":")[2] or 0)
    number = first + config.data_parallel_rank * config.tensor_parallel_size + rank
    if number >= torch.cuda.device_count():
        raise ConfigError(
            f"{config.processes} GPUs from number {first} on are asked for (--data-parallel-size x --tensor-parallel-size), "
            f"and there are {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


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
