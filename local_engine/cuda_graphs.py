"""CUDA graphs of decode steps: a step's launches recorded once for each size, and replayed by one call.

The largest is recorded first, so that the others find its memory in the pool that all of them share. Before a recording the
step runs twice on a stream of its own: Triton compiles and the matrix library chooses there, which a recording would not allow.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch

from kernels.operations import Operations

from .config import EngineConfig
from .decode_step import DecodeStep
from .kv_cache import GIB
from .models.decoder import Decoder

logger = logging.getLogger(__name__)

WARM_UPS = 2


class CudaGraphs:
    def __init__(
        self,
        compute: Callable[[int], None],
        prepare: Callable[[int], None],
        sizes: Sequence[int],
        device: torch.device,
    ) -> None:
        """`compute` (size) reads and writes only memory that stays where it is, and never waits for the device; `prepare` (size)
        gives it nothing but padding to compute."""
        self._compute, self._prepare, self._sizes, self._device = compute, prepare, sizes, device
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def capture(self) -> int:
        """Returns the bytes that the graphs took of the device."""
        before, _ = torch.cuda.mem_get_info(self._device)
        with torch.cuda.device(self._device), torch.inference_mode():
            pool = torch.cuda.graph_pool_handle()
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            for size in sorted(self._sizes, reverse=True):
                self._prepare(size)
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UPS):
                        self._compute(size)
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    self._compute(size)
                self._graphs[size] = graph
            torch.cuda.synchronize()
        after, _ = torch.cuda.mem_get_info(self._device)
        return max(0, before - after)

    def run(self, size: int) -> None:
        self._graphs[size].replay()


def decode_step(
    config: EngineConfig, model: Decoder, operations: Operations, max_context: int, device: torch.device
) -> DecodeStep | None:
    """Its buffers, before the KV pool takes what is left; None, with a line that says why, where a pass waits for the host."""
    draw_on_device = operations.draws_on_device
    if draw_on_device is None or not model.never_waits:
        why = "experts wait for the host" if draw_on_device is not None else operations.name
        logger.info("no CUDA graphs (%s): steps are launched one operation at a time", why)
        return None
    return DecodeStep(
        model,
        most=config.max_num_seqs,
        max_context=max_context,
        device=device,
        draw=operations.draw,
        draw_on_device=draw_on_device,
    )


def record(step: DecodeStep, device: torch.device, progress: Callable[[str], None]) -> None:
    """From here on the step runs by graphs. The KV cache is where it will stay, and nobody owns a page of it yet."""
    progress(f"recording CUDA graphs of {len(step.sizes)} sizes")
    began = time.monotonic()
    graphs = CudaGraphs(step.compute, step.pad, step.sizes, device)
    taken = graphs.capture()
    step.run = graphs.run
    logger.info("Graph capturing finished in %.0f secs, took %.2f GiB", time.monotonic() - began, taken / GIB)
