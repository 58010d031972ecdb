"""Which path runs: decided once, at start, by the device, the model's sizes and a self-test, and said in one log line."""

from __future__ import annotations

import logging
import platform
import time

import torch

from .batch import BLOCK, StepLayout
from .linear import stored
from .operations import Operations, TorchOperations

logger = logging.getLogger(__name__)

TOLERANCE = 2e-5
"""Largest difference from plain torch in the self-test, relative to the largest value."""


def choose_operations(
    device: torch.device,
    dtype: torch.dtype,
    *,
    threads: int,
    capacity: int,
    max_context: int,
    sizes: tuple[int, int, int],
    bfloat16: bool = False,
    plain: bool = False,
) -> Operations:
    """`sizes` are hidden, intermediate and head_dim; `plain` asks for torch whatever the machine can do.

    `bfloat16`: weights are stored in it, and activations may be rounded to it where the processor gains by that.
    """
    fallback = TorchOperations(device, dtype, capacity)
    if device.type != "cpu" or plain:
        return fallback
    try:
        from .cpu.onednn import bfloat16_works
        from .cpu.operations import CpuOperations, fits
        from .cpu.tape import one_pool
    except (ImportError, RuntimeError, OSError) as error:  # no numba, or no folder for its compiled code
        logger.warning("CPU kernels are off (%s): plain torch runs instead", error)
        return fallback
    if not fits(*sizes):
        logger.warning(
            "CPU kernels need sizes in multiples of 32 (heads of 16), not %s: plain torch runs instead", sizes
        )
        return fallback
    if not one_pool():
        logger.warning("no GNU OpenMP in this torch (%s): CPU kernels run on one thread", platform.platform())
    started = time.monotonic()
    difference = self_test(CpuOperations(threads, 16, 64))
    if not difference <= TOLERANCE:
        logger.warning("CPU kernels differ from plain torch by %.1e here: plain torch runs instead", difference)
        return fallback
    logger.info("CPU kernels agree with plain torch (%.0e) after %.1f s", difference, time.monotonic() - started)
    if not bfloat16:
        return CpuOperations(threads, capacity, max_context)
    if reason := bfloat16_works():
        logger.info("packed bfloat16 linears are off (%s): weights are widened to float32 as they are read", reason)
        return CpuOperations(threads, capacity, max_context)
    operations = CpuOperations(threads, capacity, max_context, packed_float=torch.bfloat16)
    operations.name = f"oneDNN bfloat16 linears and numba kernels on {threads} CPU threads"
    return operations


def self_test(operations: Operations) -> float:
    """Runs one small layer on `operations` and on plain torch; the largest difference relative to the largest value."""
    results = [_small_layer(path) for path in (operations, TorchOperations(torch.device("cpu"), torch.float32, 16))]
    return float((results[0] - results[1]).abs().max() / results[1].abs().max())


def _small_layer(operations: Operations) -> torch.Tensor:
    """A layer of hidden 64, 4 query and 2 kv heads of 16, on a batch of a decoding and a prefilling sequence."""
    random = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    layout = StepLayout(
        query_start=[0, 1, 8],
        context=[20, 7],
        positions=torch.tensor([19, *range(7)]),
        slots=torch.tensor([1 * BLOCK + 3, *range(2 * BLOCK, 2 * BLOCK + 7)]),
        block_tables=torch.tensor([[3, 1], [2, 0]]),
    )
    caches = noise(4, 2, BLOCK, 16), noise(4, 2, BLOCK, 16)
    qkv_weight, o_weight = operations.pack([stored(noise(128, 64))]), operations.pack([stored(noise(64, 64))])
    up, down = operations.pack([stored(noise(128, 64))]), operations.pack([stored(noise(64, 64))])
    norm, hidden, head = operations.vector(noise(64)), operations.buffer(64), operations.pack([stored(noise(40, 64))])
    hidden[:8] = noise(8, 64)
    angles = torch.outer(torch.arange(64.0), torch.tensor([1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.001]))
    tables = angles.cos(), angles.sin()
    normed, qkv, attended = operations.buffer(64), operations.buffer(128), operations.buffer(64)
    gate_up, gated = operations.buffer(128), operations.buffer(64)

    def forward() -> None:
        operations.rms_norm(hidden, norm, 1e-5, normed)
        operations.linear(normed, qkv_weight, qkv)
        operations.rotary_write(qkv, tables, caches, 4)
        operations.attention(qkv, caches, 4, attended)
        operations.linear(attended, o_weight, hidden, add=True)
        operations.rms_norm(hidden, norm, 1e-5, normed)
        operations.linear(normed, up, gate_up)
        operations.silu_mul(gate_up, gated)
        operations.linear(gated, down, hidden, add=True)

    operations.run(forward, layout)
    return operations.logits(hidden[[0, 7]].contiguous(), norm, 1e-5, head)
