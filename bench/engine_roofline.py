"""What this machine can do, and what that allows an engine: bytes read and operations of every step of a point.

    python -m bench.engine_roofline     # measures: read bandwidth, and multiply-adds of matrices in float32, bfloat16, int8

The bound takes each decode step as the longer of two times: reading the weights and the cache once, and multiplying. A prompt
takes its multiplications. Nothing else costs anything: norms, attention's softmax, drawing, tokens over HTTP.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.engine_load import Point
from bench.gateways import ROOT

THREADS = 2
SECONDS = 1.5
"""Each measurement repeats for so long and takes the best."""


@dataclass(frozen=True, slots=True)
class Machine:
    read_gb_per_s: float
    float32_gflop_per_s: float
    bfloat16_gflop_per_s: float
    int8_gop_per_s: float

    def gop_per_s(self, bits: int) -> float:
        """Multiply-adds count twice. Linears of 8 and 4 bits may be multiplied as int8 with activations of int8."""
        return self.bfloat16_gflop_per_s if bits == 16 else max(self.int8_gop_per_s, self.bfloat16_gflop_per_s)


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with tied embeddings. `linear_bytes` and `head_bytes`: as stored."""

    linear_weights: int
    head_weights: int
    linear_bytes: float
    head_bytes: float
    cache_bytes_per_token: int
    attention_ops_per_token: int
    """Multiply-adds times two of one query over one token of context, in all layers."""


SMOLLM2_LINEARS = 30 * (576 * 576 * 2 + 576 * 192 * 2 + 576 * 1536 * 3)
SMOLLM2_HEAD = 49152 * 576
BYTES = {16: (2.0, 2.0), 8: (34 / 32, 34 / 32), 4: (20 / 32, 34 / 32)}
"""Bytes per weight of linears and head: bfloat16, Q8_0, and Q4_1 under a Q8_0 head."""


def smollm2(bits: int) -> Shape:
    linear, head = BYTES[bits]
    return Shape(
        linear_weights=SMOLLM2_LINEARS,
        head_weights=SMOLLM2_HEAD,
        linear_bytes=linear * SMOLLM2_LINEARS,
        head_bytes=head * SMOLLM2_HEAD,
        cache_bytes_per_token=30 * 2 * 3 * 64 * 2,
        attention_ops_per_token=30 * 2 * 2 * 9 * 64,
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """`bytes_per_step` and `ops_per_step` of a decode step in the middle of the answers; the bound they give."""

    bytes_per_step: float
    ops_per_step: float
    prefill_s: float
    decode_s: float
    tokens_per_s: float


def bound(point: Point, shape: Shape, machine: Machine, bits: int) -> Bound:
    """A known prefix is neither computed nor, in a step, read more than once."""
    ops_per_s, bytes_per_s = 1e9 * machine.gop_per_s(bits), 1e9 * machine.read_gb_per_s
    own = point.prompt_tokens - point.shared_tokens
    rows = point.callers * own
    attended = own * (point.shared_tokens + (own + 1) / 2)
    prefill_ops: float = 2 * rows * shape.linear_weights + 2 * point.callers * shape.head_weights
    prefill_ops += point.callers * attended * shape.attention_ops_per_token
    middle = own + point.output_tokens / 2
    weights = shape.linear_bytes + shape.head_bytes
    read = weights + (point.shared_tokens + point.callers * middle) * shape.cache_bytes_per_token
    ops: float = 2 * point.callers * (shape.linear_weights + shape.head_weights)
    ops += point.callers * (point.shared_tokens + middle) * shape.attention_ops_per_token
    prefill_s = max(prefill_ops / ops_per_s, weights / bytes_per_s)
    decode_s = (point.output_tokens - 1) * max(read / bytes_per_s, ops / ops_per_s)
    tokens = point.callers * point.output_tokens
    return Bound(read, ops, prefill_s, decode_s, tokens / (prefill_s + decode_s))


def measured() -> Machine:
    """In a process of its own, which holds torch and a gigabyte for some seconds."""
    command = [sys.executable, "-m", "bench.engine_roofline"]
    answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return Machine(**json.loads(answer.stdout))


def _best(work: Callable[[], object]) -> float:
    work()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def _measure() -> Machine:
    import torch

    torch.set_num_threads(THREADS)
    size, wide = 1024, 4096
    gop = 2e-9 * size * wide * wide

    def product(dtype: torch.dtype) -> float:
        left, right = torch.randn(size, wide).to(dtype), torch.randn(wide, wide).to(dtype)
        return gop / _best(lambda: left @ right)

    left = torch.randint(-127, 127, (size, wide), dtype=torch.int8)
    right = torch.randint(-127, 127, (wide, wide), dtype=torch.int8)
    int8 = gop / _best(lambda: torch._int_mm(left, right))
    numbers = torch.ones(2**28)
    read = 4e-9 * numbers.numel() / _best(numbers.sum)
    return Machine(read, product(torch.float32), product(torch.bfloat16), int8)


if __name__ == "__main__":
    result = _measure()
    print(json.dumps({name: round(getattr(result, name), 1) for name in Machine.__slots__}))
