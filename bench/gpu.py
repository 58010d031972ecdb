"""The GPU in one command: is every kernel right on this device, how fast are they, and how fast is the engine on them.

    python -m bench.gpu                 # checks, then times; writes bench/results/gpu.json (under 8 minutes)
    python -m bench.gpu --checks        # only the checks
    python -m bench.gpu --tune          # tries the tiles of kernels/triton/configs.py and prints the fastest rows
    TRITON_INTERPRET=1 python -m bench.gpu --dry-run    # every line once on the CPU, on tiny shapes; nothing is measured

Everything is compared with what the same device does in the same process: a copy of memory (GB/s), torch's matrix product
(TFLOP/s), and transformers' generate where it is installed (gpu_engine.py). Needs torch, triton, numpy and safetensors; no
network.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu_checks import Verdict, check_all, step
from bench.gpu_engine import engine, transformers_generate
from bench.gpu_model import check_engine
from bench.gpu_setting import Setting, dry, on_device
from kernels.batch import BLOCK
from kernels.fp8 import CacheScales, row_scales, to_fp8
from kernels.quantised import awq_pack, quantise_int8
from kernels.triton import configs
from kernels.triton.attention import paged_attention, plan_attention
from kernels.triton.configs import Tiles, interpreted
from kernels.triton.fp8_linear import fp8_linear
from kernels.triton.int4_linear import int4_linear
from kernels.triton.int8_linear import int8_linear

RESULT = Path(__file__).parent / "results" / "gpu.json"


def yardsticks(setting: Setting) -> dict[str, float]:
    """Bytes read and written per second by a copy, and multiply-adds x 2 per second of a square matrix product."""
    source = torch.empty(setting.copied, dtype=setting.dtype, device=setting.device).normal_()
    target, side = torch.empty_like(source), setting.square
    copied = 2 * source.nbytes / setting.seconds(lambda: target.copy_(source))
    a, b = source[: side * side].view(side, side), source[side * side : 2 * side * side].view(side, side)
    product = torch.empty_like(a)
    flops = 2 * side**3 / setting.seconds(lambda: torch.mm(a, b, out=product))
    return {"copy_bytes_per_s": copied, "matmul_flop_per_s": flops}


def _attend_seconds(setting: Setting, shares: list[tuple[int, int]], cache: str = "full") -> float:
    model, device = setting.model, setting.device
    layout = step(shares, device)
    shape = (int(layout.block_tables.max()) + 1, model.kv_heads, BLOCK, model.head_dim)
    keys, values = (torch.randn(shape, dtype=setting.dtype, device=device) for _ in "kv")
    scales = None
    if cache == "fp8":
        one = torch.ones(model.kv_heads, device=device)
        keys, values, scales = keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn), CacheScales(one, one)
    q = torch.randn(layout.tokens, model.heads, model.head_dim, dtype=setting.dtype, device=device)
    out, plan = torch.empty_like(q), plan_attention(layout, model.heads, model.kv_heads)
    return setting.seconds(
        lambda: paged_attention(
            q, (keys, values), layout.block_tables, plan, model.head_dim**-0.5, out, scales=scales
        )
    )  # fmt: skip


def attention(setting: Setting, measured: dict[str, float]) -> dict[str, Any]:
    """Decode in bytes of keys and values per second, prefill in causal multiply-adds x 2 per second."""
    model, results = setting.model, {}
    for cache, size in (("full", setting.dtype.itemsize), ("fp8", 1)):
        for sequences, context in setting.decodes:
            took = _attend_seconds(setting, [(context - 1, 1)] * sequences, cache)
            rate = sequences * context * 2 * model.kv_heads * model.head_dim * size / took
            results[f"decode {sequences} x {context}, {cache} cache"] = {
                "us": took * 1e6, "gb_per_s": rate / 1e9, "of_copy": rate / measured["copy_bytes_per_s"],
            }  # fmt: skip
        for sequences, tokens in setting.prefills:
            took = _attend_seconds(setting, [(0, tokens)] * sequences, cache)
            rate = sequences * 4 * model.heads * model.head_dim * tokens * (tokens + 1) / 2 / took
            results[f"prefill {sequences} x {tokens}, {cache} cache"] = {
                "us": took * 1e6, "tflop_per_s": rate / 1e12, "of_matmul": rate / measured["matmul_flop_per_s"],
            }  # fmt: skip
    return results


class Products:
    """The gate-and-up matrix of the model's shape in each storage."""

    def __init__(self, setting: Setting) -> None:
        self.outputs, self.inputs = 2 * setting.model.intermediate_size, setting.model.hidden_size
        device, dtype, groups = setting.device, setting.dtype, setting.model.hidden_size // setting.group
        wide = torch.randn(self.outputs, self.inputs, device=device) * 0.02
        self.full, (self.int8, self.int8_scales) = wide.to(dtype), quantise_int8(wide)
        self.fp8_scales = row_scales(wide)
        self.fp8 = to_fp8(wide, self.fp8_scales[:, None])
        self.int4 = awq_pack(torch.randint(0, 16, (self.inputs, self.outputs))).to(device)
        self.zeros = awq_pack(torch.full((groups, self.outputs), 8)).to(device)
        self.int4_scales = torch.full((groups, self.outputs), 0.01, dtype=dtype, device=device)

    def runs(self, x: torch.Tensor, out: torch.Tensor) -> dict[str, tuple[torch.Tensor, Callable[[], object]]]:
        """By name: the weights, whose bytes count, and the product."""
        x_scales = row_scales(x)
        narrow = to_fp8(x, x_scales[:, None])
        return {
            "full (torch)": (self.full, lambda: torch.mm(x, self.full.t(), out=out)),
            "int8": (self.int8, lambda: int8_linear(x, self.int8, self.int8_scales, out)),
            "fp8": (self.fp8, lambda: fp8_linear(narrow, x_scales, self.fp8, self.fp8_scales, out)),
            "int4": (self.int4, lambda: int4_linear(x, self.int4, self.zeros, self.int4_scales, out)),
        }


def products(setting: Setting, measured: dict[str, float]) -> dict[str, Any]:
    matrix, results = Products(setting), {}
    for rows in setting.rows:
        x = torch.randn(rows, matrix.inputs, dtype=setting.dtype, device=setting.device)
        out = torch.empty(rows, matrix.outputs, dtype=setting.dtype, device=setting.device)
        for name, (weights, run) in matrix.runs(x, out).items():
            took = setting.seconds(run)
            rate, flops = weights.nbytes / took, 2 * rows * matrix.outputs * matrix.inputs / took
            results[f"{name}, {rows} rows"] = {
                "us": took * 1e6, "weight_gb_per_s": rate / 1e9, "of_copy": rate / measured["copy_bytes_per_s"],
                "tflop_per_s": flops / 1e12, "of_matmul": flops / measured["matmul_flop_per_s"],
            }  # fmt: skip
    return results


def tune(setting: Setting) -> None:
    """Prints the fastest tiles, as rows of configs.py: attention's by its own work, the products' by those with int4 weights."""
    generation, matrix = configs.device_kind(setting.device).generation, Products(setting)

    def attend(shares: list[tuple[int, int]]) -> Callable[[], float]:
        return lambda: _attend_seconds(setting, shares)

    def multiply(rows: int) -> Callable[[], float]:
        x = torch.randn(rows, matrix.inputs, dtype=setting.dtype, device=setting.device)
        out = torch.empty(rows, matrix.outputs, dtype=setting.dtype, device=setting.device)
        return lambda: setting.seconds(matrix.runs(x, out)["int4"][1])

    decode, prefill = configs.ATTENTION_DECODE[generation], configs.ATTENTION_PREFILL[generation]
    few, many = configs.MATMUL[generation, False], configs.MATMUL[generation, True]
    sequences, context = setting.decodes[-2]
    _, tokens = setting.prefills[-1]
    _try(
        f"ATTENTION_DECODE[{generation!r}]", decode, _tiles(setting, decode, (16,), (0,)),
        partial(configs.ATTENTION_DECODE.__setitem__, generation), attend([(context - 1, 1)] * sequences),
    )  # fmt: skip
    _try(
        f"ATTENTION_PREFILL[{generation!r}]", prefill, _tiles(setting, prefill, (64, 128), (0,)),
        partial(configs.ATTENTION_PREFILL.__setitem__, generation), attend([(0, tokens)]),
    )  # fmt: skip
    for wide, table, heights in ((False, few, (16,)), (True, many, (64, 128))):
        key = generation, wide
        _try(
            f"MATMUL[{generation!r}, {wide}]", table, _tiles(setting, table, heights, (32, 64, 128)),
            partial(configs.MATMUL.__setitem__, key), multiply(setting.rows[-1] if wide else setting.rows[0]),
        )  # fmt: skip


def _tiles(setting: Setting, kept: Tiles, heights: tuple[int, ...], depths: tuple[int, ...]) -> Iterator[Tiles]:
    if setting.dry:
        yield kept
        return
    for m in heights:
        for n in (32, 64, 128):
            for k in depths:
                for warps, stages in ((4, 2), (4, 3), (4, 4), (8, 2), (8, 3)):
                    yield replace(kept, m=m, n=n, k=k, warps=warps, stages=stages)


def _try(
    name: str,
    kept: Tiles,
    candidates: Iterator[Tiles],
    use: Callable[[Tiles], None],
    timed: Callable[[], float],
) -> None:
    best = float("inf"), kept
    for tiles in candidates:
        use(tiles)
        try:
            best = min(best, (timed(), tiles), key=lambda each: each[0])
        except Exception as error:  # too much shared memory, in the compiler's or the driver's words
            print(f"  {tiles}: {type(error).__name__}", file=sys.stderr)
    use(kept)
    print(f"{name} = {best[1]}  # {best[0] * 1e6:.0f} us", flush=True)


def checks(setting: Setting) -> Iterator[Verdict]:
    """Kernels in both types that models come in (in the interpreter in one that it computes), then the engine."""
    if setting.dry:
        yield from check_all(setting.device, torch.float32, 64)
    else:
        for dtype in (torch.float16, torch.bfloat16):
            yield from check_all(setting.device, dtype)
    yield from check_engine(setting, tokens=2 if setting.dry else 24)


def measure(setting: Setting, verdicts: list[Verdict]) -> dict[str, Any]:
    began, measured = time.monotonic(), yardsticks(setting)
    report: dict[str, Any] = {
        "device": "none: a dry run" if setting.dry else torch.cuda.get_device_name(setting.device),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "checks": [asdict(each) for each in verdicts],
        "measured": measured,
        "attention": attention(setting, measured),
        "products": products(setting, measured),
        "engine": engine(setting, measured["copy_bytes_per_s"]),
        "transformers": transformers_generate(setting),
    }
    return {**report, "took_s": round(time.monotonic() - began)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.gpu", description="Checks and times the Triton kernels on a CUDA device."
    )
    parser.add_argument("--checks", action="store_true", help="only compare with plain torch")
    parser.add_argument("--tune", action="store_true", help="print the fastest tiles instead")
    parser.add_argument("--dry-run", action="store_true", help="run every line once in the interpreter; writes nothing")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.dry_run != interpreted() or not (options.dry_run or torch.cuda.is_available()):
        print(
            "bench.gpu: needs a CUDA device, and TRITON_INTERPRET unset; or --dry-run, and TRITON_INTERPRET=1",
            file=sys.stderr,
        )
        return 1
    setting = dry() if options.dry_run else on_device(torch.device("cuda"))
    if options.tune:
        tune(replace(setting, repeats=5))
        return 0
    verdicts = []
    for each in checks(setting):
        verdicts.append(each)
        print(
            f"{'right' if each.right else 'WRONG'}  {each.kernel}: {each.lost:.2e}, allowed {each.allowed:.2e}",
            flush=True,
        )
    if not all(each.right for each in verdicts):
        return 2
    if options.checks:
        return 0
    report = measure(setting, verdicts)
    if not options.dry_run:
        options.out.parent.mkdir(exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({name: report[name] for name in ("measured", "attention", "engine", "transformers")}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
