"""The KV pool: how much memory it gets, and its tensors."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kernels.fp8 import CacheScales
from kernels.operations import Operations

from .config import BLOCK_SIZE, EngineConfig
from .errors import ConfigError, OutOfMemory
from .models.config import ModelConfig

GIB = 1 << 30
CPU_SHARE = 0.4
"""Of what is free after the weights."""
CPU_MOST = 4 * GIB
CACHE_LINE = 64
FP8 = torch.float8_e4m3fn
CACHE_DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "fp8": FP8, "fp8_e4m3": FP8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KVCache:
    """Per layer, keys and values as [blocks, kv_heads, 16, head_dim]."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    num_blocks: int
    scales: list[CacheScales] | None = None
    """By layer, where keys and values are kept in fp8."""


def block_bytes(model: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values together."""
    return 2 * model.layers * model.kv_heads * BLOCK_SIZE * model.head_dim * dtype.itemsize


def plan_blocks(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, budget: int) -> int:
    """How many blocks fit into `budget` bytes; one sequence of the longest context fits, or `OutOfMemory` says what would.

    A context length that the caller did not ask for is lowered instead (`fit_context`), so here only one block must fit.
    """
    if config.num_blocks_override is not None:
        return config.num_blocks_override
    size = block_bytes(model, dtype)
    most_useful = config.max_num_seqs * -(-(config.max_model_len or model.longest_context) // BLOCK_SIZE)
    blocks = min(budget // size, most_useful)
    if blocks < 1:
        raise OutOfMemory(
            f"the KV cache has room for {budget:,} bytes, but one block of {BLOCK_SIZE} tokens takes {size:,}: give it more by "
            "--kv-cache-memory-bytes, or serve a smaller model"
        )
    return blocks


def allocate(model: ModelConfig, num_blocks: int, dtype: torch.dtype, device: torch.device) -> KVCache:
    """Zeroed, so that no read of it is ever a NaN that nobody wrote. Raises `OutOfMemory`."""
    shape = (num_blocks, model.kv_heads, BLOCK_SIZE, model.head_dim)
    try:
        layers = [(_zeros(shape, dtype, device), _zeros(shape, dtype, device)) for _ in range(model.layers)]
    except (RuntimeError, MemoryError) as error:
        total = num_blocks * block_bytes(model, dtype)
        raise OutOfMemory(
            f"no memory for a KV cache of {total:,} bytes ({num_blocks} blocks): lower --kv-cache-memory-bytes, "
            "--max-model-len or --gpu-memory-utilization, or raise --tensor-parallel-size"
        ) from error
    return KVCache(layers, num_blocks)


def cache_dtype(config: EngineConfig, model: ModelConfig, operations: Operations, device: torch.device) -> torch.dtype:
    """As asked for; else fp8 where the checkpoint was made for it and the path can; else as --dtype says; else, on the CPU,
    bfloat16 (half the memory to read at every step), unless the weights are float32 themselves. Raises `ConfigError`.
    """
    asked = config.kv_cache_dtype
    if asked == "auto" and _made_for_fp8(model) and FP8 in operations.cache_types:
        return FP8
    if asked == "auto":
        asked = config.dtype
    if asked == "auto":
        narrow = device.type == "cpu" and model.dtype != "float32"
        return torch.bfloat16 if narrow else operations.dtype
    dtype = CACHE_DTYPES[asked]
    if dtype not in operations.cache_types:
        known = " or ".join(
            name for name in ("float32", "bfloat16", "float16") if CACHE_DTYPES[name] in operations.cache_types
        )
        where = (
            "; fp8 runs on GPUs of compute capability 8.9 and newer, and slowly with --kernels torch"
            if dtype == FP8
            else ""
        )
        raise ConfigError(f"a KV cache of {asked} is not supported by {operations.name}: use {known}{where}")
    return dtype


def _made_for_fp8(model: ModelConfig) -> bool:
    """As compressed-tensors and ModelOpt say it in config.json."""
    quantised = model.own.get("quantization_config") or {}
    scheme = quantised.get("kv_cache_scheme") or {}
    return (scheme.get("type") == "float" and scheme.get("num_bits") == 8) or quantised.get(
        "kv_cache_quant_algo"
    ) == "FP8"


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On the CPU as pages that the kernel clears when they are first written (numpy asks calloc, torch.zeros writes):
    a start does not wait for gigabytes that nobody uses yet."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + CACHE_LINE, dtype=np.uint8)
    first = -room.ctypes.data % CACHE_LINE  # a vector that lies across two lines costs two reads
    return torch.from_numpy(room[first : first + size]).view(dtype).view(shape)


def cpu_budget(config: EngineConfig) -> int:
    return min(CPU_MOST, int(CPU_SHARE * free_memory_bytes())) // config.processes


def free_memory_bytes() -> int:
    """What this process may still take: the machine's available memory, or less where its cgroup says so."""
    free = _available_memory()
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue
    return max(0, free)


def _available_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
