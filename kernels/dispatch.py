"""Which path runs: decided once, at start, by the device, the model's sizes and a self-test, and said in one log line."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .batch import BLOCK, StepLayout
from .linear import stored
from .operations import Attention, Operations, TorchOperations

if TYPE_CHECKING:
    from .cpu.operations import CpuOperations

logger = logging.getLogger(__name__)

TOLERANCE = 2e-5
"""Largest difference from plain torch in the self-test, relative to the largest value."""
HALF_TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The same on a GPU, by the activations' type; its own products in float32 may round to TF32."""


def choose_operations(
    device: torch.device,
    dtype: torch.dtype,
    *,
    threads: int,
    capacity: int,
    max_context: int,
    widths: Sequence[int],
    head_dim: int,
    bfloat16: bool = False,
    int8: bool = False,
    path: str = "auto",
) -> Operations:
    """`widths` are those of the inputs of the model's matrices. `path`: `auto` (Triton on CUDA, numba on the CPU), `torch`
    whatever the machine can do, or `triton` also on the CPU, where TRITON_INTERPRET=1 must be set (for tests: it is slow).

    `bfloat16`: some weights are stored in it, and activations may be rounded to it where the processor gains by that. `int8`: the
    same of weights in 8 and 4 bits, and of activations in 16. A path that
    cannot run, or that computes something else than plain torch here, falls back to plain torch with one log line; `triton`
    asked for by name raises ValueError instead.
    """
    fallback = TorchOperations(device, dtype, capacity)
    if path == "torch":
        return fallback
    if path == "triton" or device.type == "cuda":
        return _triton_operations(device, dtype, capacity, fallback, asked=path == "triton")
    if device.type != "cpu":
        return fallback
    try:
        from .cpu.operations import CpuOperations, fits
        from .cpu.tape import one_pool
    except (ImportError, RuntimeError, OSError) as error:  # no numba, or no folder for its compiled code
        logger.warning("CPU kernels are off (%s): plain torch runs instead", error)
        return fallback
    if not fits(widths, head_dim):
        logger.warning(
            "CPU kernels need widths in multiples of 32 (heads of 16), not %s (%d): plain torch runs instead",
            list(widths),
            head_dim,
        )
        return fallback
    if not one_pool():
        logger.warning("no GNU OpenMP in this torch (%s): CPU kernels run on one thread", platform.platform())
    started = time.monotonic()
    difference = self_test(CpuOperations(threads, 16, 80))
    if not difference <= TOLERANCE:
        logger.warning("CPU kernels differ from plain torch by %.1e here: plain torch runs instead", difference)
        return fallback
    logger.info("CPU kernels agree with plain torch (%.0e) after %.1f s", difference, time.monotonic() - started)
    return _rounding_operations(threads, capacity, max_context, bfloat16=bfloat16, int8=int8)


def _rounding_operations(threads: int, capacity: int, max_context: int, *, bfloat16: bool, int8: bool) -> CpuOperations:
    """The CPU's kernels with whatever they may round and the processor gains by."""
    from .cpu.int8_weights import int8_works
    from .cpu.onednn import bfloat16_works
    from .cpu.operations import CpuOperations
    from .cpu.pairs import has_amx, pairs_work

    names: list[str] = []
    pairs, packed_float = False, None
    if int8:
        reason = int8_works(threads)
        int8 = reason is None
        if int8:
            names.append("16-bit activations at quantised matrices")
        else:
            logger.info("own 8-bit linears are off (%s): activations stay float32", reason)
    if bfloat16 or int8:
        reason = pairs_work(threads)
        pairs = reason is None
        if pairs:
            names.append("bfloat16 dot products")
        else:
            logger.info("own bfloat16 products are off (%s)", reason)
    if bfloat16 and (has_amx() or not pairs):
        if reason := bfloat16_works():
            logger.info("oneDNN's bfloat16 linears are off (%s): our own kernels read the bfloat16 weights", reason)
        else:
            packed_float = torch.bfloat16
            names.append("oneDNN bfloat16 linears")
    operations = CpuOperations(threads, capacity, max_context, packed_float, pairs, int8)
    if names:
        operations.name = f"{', '.join(names)} and numba kernels on {threads} CPU threads"
    return operations


def compiles_first(device: torch.device, path: str) -> bool:
    """Whether `choose_operations` will spend its time compiling: nothing that an earlier start compiled is at hand."""
    if path == "torch":
        return False
    try:
        if path == "triton" or device.type == "cuda":
            from .triton.configs import interpreted, nothing_compiled

            return not interpreted() and nothing_compiled()
        from .cpu import compiled
    except ImportError:  # no triton, no numba: nothing will be compiled
        return False
    return compiled.nothing_compiled()


def _triton_operations(
    device: torch.device, dtype: torch.dtype, capacity: int, fallback: Operations, *, asked: bool
) -> Operations:
    reason = ""
    try:
        from .triton.configs import BF16_DOT, interpreted
        from .triton.operations import TritonOperations
    except ImportError as error:
        reason = f"no triton here: {error}"
    else:
        if device.type == "cpu" and not interpreted():
            reason = "on the CPU they need TRITON_INTERPRET=1"
        elif interpreted() and dtype == torch.bfloat16:
            reason = BF16_DOT
        elif interpreted() and device.type != "cpu":
            reason = "TRITON_INTERPRET is set: unset it to run on the GPU"
    if not reason:
        started = time.monotonic()
        try:
            difference = self_test(TritonOperations(device, dtype, 16))
        except Exception as error:  # whatever the compiler or the driver raises: the engine serves without the kernels
            reason = f"{type(error).__name__}: {error}"
        else:
            if difference <= HALF_TOLERANCE[dtype]:
                logger.info(
                    "Triton kernels agree with plain torch (%.0e) after %.1f s", difference, time.monotonic() - started
                )
                return TritonOperations(device, dtype, capacity)
            reason = f"they differ from plain torch by {difference:.1e} here"
    if asked:
        raise ValueError(f"Triton kernels cannot run: {reason}")
    logger.warning("Triton kernels are off (%s): plain torch runs instead", reason)
    return fallback


def self_test(operations: Operations) -> float:
    """Runs one small layer on `operations` and on plain torch; the largest difference relative to the largest value."""
    yardstick = TorchOperations(torch.device("cpu"), torch.float32, 16)
    results = [_small_layer(path).float().cpu() for path in (operations, yardstick)]
    return float((results[0] - results[1]).abs().max() / results[1].abs().max())


def _small_layer(operations: Operations) -> torch.Tensor:
    """Two layers of hidden 64, 4 query and 2 kv heads of 16: one as Llama has it, one with all that other families add. First a
    prompt, then a batch in which another one stands beside four tokens that all see the prompt's block, four times.
    """
    random = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    example = operations.buffer(1)
    device, dtype = example.device, example.dtype
    cached = StepLayout(
        query_start=[0, 16],
        context=[16],
        positions=torch.arange(16).to(device),
        slots=torch.arange(3 * BLOCK, 4 * BLOCK).to(device),
        block_tables=torch.tensor([[3]]).to(device),
    )
    layout = StepLayout(
        query_start=[0, 4, 8],
        context=[68, 4],
        positions=torch.tensor([*range(64, 68), *range(4)]).to(device),
        slots=torch.tensor([*range(BLOCK, BLOCK + 4), *range(2 * BLOCK, 2 * BLOCK + 4)]).to(device),
        block_tables=torch.tensor([[3, 3, 3, 3, 1], [2, 0, 0, 0, 0]]).to(device),
    )
    caches = torch.zeros(4, 2, BLOCK, 16).to(device, dtype), torch.zeros(4, 2, BLOCK, 16).to(device, dtype)
    qkv_weight, o_weight = operations.pack([stored(noise(128, 64))]), operations.pack([stored(noise(64, 64))])
    up, down = operations.pack([stored(noise(128, 64))]), operations.pack([stored(noise(64, 64))])
    norm, hidden, head = operations.vector(noise(64)), operations.buffer(64), operations.pack([stored(noise(40, 64))])
    hidden[:16] = noise(16, 64).to(device, dtype)
    angles = torch.outer(torch.arange(80.0), torch.tensor([1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.001]))
    tables = angles.cos().to(device), angles.sin().to(device)
    normed, qkv, attended = operations.buffer(64), operations.buffer(128), operations.buffer(64)
    gate_up, gated = operations.buffer(128), operations.buffer(64)
    other = Attention(4, 0.25, window=5, softcap=3.0)
    bias, head_norms = operations.vector(noise(128)), operations.vector(noise(6, 16))

    def forward() -> None:
        operations.rms_norm(hidden, norm, 1e-5, normed)
        operations.linear(normed, qkv_weight, qkv)
        operations.rotary_write(qkv, tables, caches, Attention(4, 0.25))
        operations.attention(qkv, caches, Attention(4, 0.25), attended)
        operations.linear(attended, o_weight, hidden, add=True)
        operations.rms_norm(hidden, norm, 1e-5, normed)
        operations.linear(normed, up, gate_up)
        operations.silu_mul(gate_up, gated)
        operations.linear(gated, down, hidden, add=True)
        operations.rms_norm(hidden, norm, 1e-5, normed)
        operations.linear(normed, qkv_weight, qkv)
        operations.add_bias(qkv, bias)
        operations.head_norm(qkv, head_norms, 1e-5)
        operations.rotary_write(qkv, tables, caches, other)
        operations.attention(qkv, caches, other, attended)
        operations.linear(attended, o_weight, normed)
        operations.rms_norm(normed, norm, 1e-5, hidden, add=True)
        operations.linear(hidden, up, gate_up)
        operations.gelu_mul(gate_up, gated)
        operations.linear(gated, down, hidden, add=True)

    operations.run(forward, cached)
    hidden[:8] = noise(8, 64).to(device, dtype)
    operations.run(forward, layout)
    return operations.logits(hidden[[3, 7]].contiguous(), norm, 1e-5, head)
