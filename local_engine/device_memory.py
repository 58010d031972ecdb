"""How much of a GPU's memory the KV pool gets, by a step measured at start; and what the start says of it.

    pool = total x utilisation - what others hold - the peak of a step of full size - the graphs

What others hold is the driver's word less what torch keeps: other processes, CUDA's own context, loaded kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .batch import ScheduledSequence
from .config import BLOCK_SIZE
from .planner.plan import GRAPH_BYTES_PER_LAYER
from .sampling_params import SamplingParams

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes. `free` is the driver's, `reserved` torch's, `peak` the most that torch had in use at once, weights included."""

    total: int
    free: int
    reserved: int
    peak: int

    @property
    def others(self) -> int:
        return self.total - self.free - self.reserved


def peak_of(step: Callable[[], None], device: torch.device) -> DeviceMemory:
    """Of a CUDA device, after `step`, which is given what torch has kept for later."""
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, torch.cuda.memory_reserved(device), torch.cuda.max_memory_allocated(device))


def pool_bytes(memory: DeviceMemory, utilisation: float, layers: int, *, eager: bool) -> int:
    """Never negative. Graphs are recorded later: for them the planner's allowance is kept free."""
    graphs = 0 if eager else GRAPH_BYTES_PER_LAYER * layers
    return max(0, int(memory.total * utilisation) - memory.others - memory.peak - graphs)


def full_batch(tokens: int, sequences: int, longest: int) -> list[ScheduledSequence]:
    """A step that takes as much memory as any: `tokens` tokens in as many sequences as may draw, all on page 0."""
    sequences = min(sequences, tokens)
    each = min(tokens // sequences, longest)
    params = SamplingParams(temperature=1.0, top_p=0.9)
    table = [0] * -(-each // BLOCK_SIZE)
    return [ScheduledSequence(number, [0] * each, 0, table, True, params) for number in range(sequences)]


def memory_lines(device: str, blocks: int, block_bytes: int, longest: int, window: int | None) -> Sequence[str]:
    """As vLLM says them. `window`: behind it a sequence gives its pages back."""
    pages = -(-longest // BLOCK_SIZE)
    if window is not None:
        pages = min(pages, -(-window // BLOCK_SIZE) + 1)
    name = device.split(":")[0].replace("cuda", "gpu").upper()
    return (
        f"Available KV cache memory: {blocks * block_bytes / GIB:.2f} GiB",
        f"{name} KV cache size: {blocks * BLOCK_SIZE:,} tokens",
        f"Maximum concurrency for {longest:,} tokens per request: {blocks / pages:.2f}x",
    )
