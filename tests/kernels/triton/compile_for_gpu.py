"""Compiles every kernel for a GPU that is not there, through the functions that launch them, and prints one line for each.

Triton brings its compiler and NVIDIA's assembler, so that all but the launch can happen on any machine: `python -m
tests.kernels.triton.compile_for_gpu 90` ends in machine code for compute capability 9.0, or in the compiler's own error. The
interpreter forgives what the compiler does not (types that change in a loop, shapes that do not fit); this does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from kernels.batch import StepLayout
from kernels.fp8 import CacheScales, block_scales, group_scales, row_scales, to_fp8
from kernels.low_rank import Stacked
from kernels.sampling import DrawSettings
from kernels.triton import configs

GENERATIONS = {80: "ampere", 89: "ada", 90: "hopper"}


class AbsentDevice:
    """What the compiler asks of a driver: which GPU it compiles for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(seen: dict[str, Any]) -> None:
    """Turns every launch into a compilation, whose result goes into `seen` under the kernel's name."""
    launch = jit.JITFunction.run

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
        seen[self.fn.__name__] = kernel
        return kernel

    jit.JITFunction.run = compiled


def launches(generation: str) -> list[tuple[str, Callable[[], object]]]:
    """A name and a launch for each form of each kernel that serves a model in bfloat16 or less."""
    from kernels.triton.add_rms_norm import add_rms_norm
    from kernels.triton.attention import paged_attention, plan_attention
    from kernels.triton.fp8_linear import fp8_linear
    from kernels.triton.gated_mul import gated_mul
    from kernels.triton.int4_linear import launch_int4
    from kernels.triton.int8_linear import int8_linear
    from kernels.triton.low_rank import launch_adapt, plan_adapters
    from kernels.triton.rotary import rotary
    from kernels.triton.sampling import draw_on_device
    from kernels.triton.write_cache import write_cache

    x = torch.zeros(64, 256, dtype=torch.bfloat16)
    heads, kv = torch.zeros(8, 12, 128, dtype=torch.bfloat16), torch.zeros(4, 2, 16, 128, dtype=torch.bfloat16)
    narrow = kv.to(torch.float8_e4m3fn)
    angles, ints = torch.zeros(32, 64), torch.zeros(8, dtype=torch.int64)
    decode = StepLayout([0, 1], [33], ints[:1], ints[:1], torch.zeros(1, 3, dtype=torch.int64))
    prefill = StepLayout([0, 8], [8], ints, ints, torch.zeros(1, 1, dtype=torch.int64))
    drawing = DrawSettings([1.0], [5], [0.9], [0.1], [0.5])

    def attend(layout: StepLayout, cache: torch.Tensor, splits: int, **options: Any) -> Callable[[], object]:
        plan = replace(plan_attention(layout, 8, 2), splits=splits)
        q, out = heads[: layout.tokens, :8], torch.zeros(layout.tokens, 8, 128, dtype=torch.bfloat16)
        return lambda: paged_attention(q, (cache, cache), layout.block_tables, plan, 0.1, out, **options)

    found: list[tuple[str, Callable[[], object]]] = [
        ("norm", lambda: add_rms_norm(x, x[0], 1e-5, x, residual=x)),
        ("gated activation", lambda: gated_mul(x, x[:, :128])),
        ("rotary", lambda: rotary(heads, angles, angles, ints)),
        ("cache write", lambda: write_cache(heads[:, :2], heads[:, 2:4], (kv, kv), ints)),
        ("attention, prefill", attend(prefill, kv, 1)),
        ("attention, decode in parts", attend(decode, kv, 4)),
        ("attention, window and softcap", attend(prefill, kv, 1, window=32, softcap=30.0)),
        ("sampling", lambda: draw_on_device(torch.zeros(1, 128_256), drawing)),
        ("int8 product", lambda: int8_linear(x, torch.zeros(64, 256, dtype=torch.int8), torch.ones(64), x[:, :64])),
    ]
    pairs = Stacked(
        torch.zeros(2, 16, 256, dtype=torch.bfloat16), torch.zeros(2, 128, 16, dtype=torch.bfloat16), ints[:2].int()
    )
    of_rows = plan_adapters(replace(prefill, adapters=(1,)))
    found.append(("low rank", lambda: launch_adapt(x[:8], pairs, of_rows, x[:8, :128], 2)))
    words, scales = torch.zeros(256, 8, dtype=torch.int32), torch.ones(2, 64, dtype=torch.bfloat16)
    found.append(("int4 product", lambda: launch_int4(x, words, words[:2], scales, x[:, :64], 1)))
    if generation != "ampere":
        wide = torch.zeros(128, 256)
        scales_of_heads = CacheScales(torch.ones(2), torch.ones(2))
        weight, blocks = to_fp8(wide, 1.0), block_scales(wide)
        found += [
            (
                "fp8 cache write",
                lambda: write_cache(heads[:, :2], heads[:, 2:4], (narrow, narrow), ints, scales_of_heads),
            ),
            ("attention, fp8 cache", attend(decode, narrow, 4, scales=scales_of_heads)),
            ("fp8 product", lambda: fp8_linear(to_fp8(x, 1.0), row_scales(x), weight, row_scales(wide), x[:, :128])),
            ("fp8 product in blocks", lambda: fp8_linear(to_fp8(x, 1.0), group_scales(x), weight, blocks, x[:, :128])),
        ]
    return found


def main(capability: int) -> int:
    driver.set_active(AbsentDevice(capability))
    generation = GENERATIONS[capability]
    vars(configs)["device_kind"] = lambda device: configs.DeviceKind(generation, 132)
    most = {80: 163, 89: 99, 90: 227}[capability] * 1024  # shared memory of a block, CUDA's programming guide
    failed = 0
    seen: dict[str, Any] = {}
    compile_only(seen)
    for name, launch in launches(generation):
        seen.clear()
        launch()
        for kernel, result in seen.items():
            shared, code = result.metadata.shared, len(result.asm["cubin"])
            verdict = "ok" if code and shared <= most else "too much shared memory"
            failed += verdict != "ok"
            print(
                f"{name}: {kernel} sm_{capability} {verdict} ({code:,} bytes, {shared:,} of shared memory)", flush=True
            )
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
