"""The GPU in one command: is every kernel right on this device, how fast are they, and how fast is the engine on them.

    python -m bench.gpu                 # checks, then times; writes bench/results/gpu.json (under 8 minutes)
    python -m bench.gpu --checks        # only the checks
    python -m bench.gpu --tune          # tries the tiles of kernels/triton/configs.py and prints the fastest rows

Everything is compared with what the same device does in the same process: a copy of memory (GB/s), torch's matrix product
(TFLOP/s), and transformers' generate where it is installed. The engine runs with random weights in Llama-3.1-8B's shape, so
nothing has to be downloaded. Needs torch, triton, numpy and safetensors; no network.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.gpu_checks import check_all, step
from kernels.batch import BLOCK, StepLayout
from kernels.fp8 import row_scales, to_fp8
from kernels.linear import StoredWeight
from kernels.quantised import awq_pack, quantise_int8
from kernels.triton import configs
from kernels.triton.attention import paged_attention, plan_attention
from kernels.triton.configs import Tiles, interpreted
from kernels.triton.fp8_linear import fp8_linear
from kernels.triton.int4_linear import int4_linear
from kernels.triton.int8_linear import int8_linear
from kernels.triton.operations import TritonOperations
from local_engine.kv_cache import allocate
from local_engine.models.config import ModelConfig
from local_engine.models.decoder import Decoder
from local_engine.models.family import Family

RESULT = Path(__file__).parent / "results" / "gpu.json"
HEADS, KV_HEADS, SIZE = 32, 8, 128
LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, layers=32,
    heads=HEADS, kv_heads=KV_HEADS, head_dim=SIZE, rms_norm_eps=1e-5, rope={"rope_theta": 500_000.0},
    max_position_embeddings=8192, tie_word_embeddings=False, dtype="bfloat16",
)  # fmt: skip
CONTEXT = 1024
"""Tokens that each of the engine's sequences has when its decode step is timed."""


def seconds(run: Callable[[], object], repeats: int = 20) -> float:
    """Median of `repeats` runs on the device's own clock, after three that are not counted."""
    for _ in range(3):
        run()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1e3)
    return statistics.median(times)


def yardsticks(device: torch.device) -> dict[str, float]:
    """Bytes read and written per second by a copy of 2 GiB, and multiply-adds x 2 per second of a bf16 product of 8192."""
    source = torch.empty(1 << 30, dtype=torch.bfloat16, device=device).normal_()
    target = torch.empty_like(source)
    copied = 2 * source.numel() * 2 / seconds(lambda: target.copy_(source))
    a, b = source[: 1 << 26].view(8192, 8192), source[1 << 26 : 1 << 27].view(8192, 8192)
    product = torch.empty_like(a)
    return {"copy_bytes_per_s": copied, "matmul_flop_per_s": 2 * 8192**3 / seconds(lambda: torch.mm(a, b, out=product))}


def _attention_inputs(
    device: torch.device, shares: list[tuple[int, int]]
) -> tuple[StepLayout, torch.Tensor, tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    layout = step(shares, device)
    blocks = int(layout.block_tables.max()) + 1
    caches = [torch.randn(blocks, KV_HEADS, BLOCK, SIZE, dtype=torch.bfloat16, device=device) for _ in "kv"]
    q = torch.randn(layout.tokens, HEADS, SIZE, dtype=torch.bfloat16, device=device)
    return layout, q, (caches[0], caches[1]), torch.empty_like(q)


def _attend_seconds(device: torch.device, shares: list[tuple[int, int]]) -> float:
    layout, q, caches, out = _attention_inputs(device, shares)
    plan = plan_attention(layout, HEADS, KV_HEADS)
    return seconds(lambda: paged_attention(q, caches, layout.block_tables, plan, SIZE**-0.5, out))


def attention(device: torch.device, measured: dict[str, float]) -> dict[str, Any]:
    """Decode in bytes of keys and values per second, prefill in causal multiply-adds x 2 per second."""
    results: dict[str, Any] = {}
    for sequences, context in ((1, 8192), (1, 65_536), (16, 8192), (64, 8192), (256, 1024)):
        took = _attend_seconds(device, [(context - 1, 1)] * sequences)
        rate = sequences * context * 2 * KV_HEADS * SIZE * 2 / took
        results[f"decode {sequences} x {context}"] = {
            "us": took * 1e6, "gb_per_s": rate / 1e9, "of_copy": rate / measured["copy_bytes_per_s"],
        }  # fmt: skip
    for sequences, tokens in ((1, 2048), (1, 8192), (8, 2048)):
        took = _attend_seconds(device, [(0, tokens)] * sequences)
        rate = sequences * 4 * HEADS * SIZE * tokens * (tokens + 1) / 2 / took
        results[f"prefill {sequences} x {tokens}"] = {
            "us": took * 1e6, "tflop_per_s": rate / 1e12, "of_matmul": rate / measured["matmul_flop_per_s"],
        }  # fmt: skip
    return results


def products(device: torch.device, measured: dict[str, float]) -> dict[str, Any]:
    """The gate-and-up product of the 8B shape, by each storage, beside torch's in bf16."""
    outputs, inputs = 2 * LLAMA_8B.intermediate_size, LLAMA_8B.hidden_size
    wide = torch.randn(outputs, inputs, device=device) * 0.02
    bf16, (int8, int8_scales) = wide.to(torch.bfloat16), quantise_int8(wide)
    channel = row_scales(wide)
    fp8 = to_fp8(wide, channel[:, None])
    int4 = awq_pack(torch.randint(0, 16, (inputs, outputs))).to(device)
    zeros = awq_pack(torch.full((inputs // 128, outputs), 8)).to(device)
    groups = torch.full((inputs // 128, outputs), 0.01, dtype=torch.bfloat16, device=device)
    stored = {"bf16 (torch)": bf16.nbytes, "int8": int8.nbytes, "fp8": fp8.nbytes, "int4": int4.nbytes}
    results: dict[str, Any] = {}

    def runs_of(x: torch.Tensor, out: torch.Tensor) -> dict[str, Callable[[], object]]:
        x_scales = row_scales(x)
        narrow = to_fp8(x, x_scales[:, None])
        return {
            "bf16 (torch)": lambda: torch.mm(x, bf16.t(), out=out),
            "int8": lambda: int8_linear(x, int8, int8_scales, out),
            "fp8": lambda: fp8_linear(narrow, x_scales, fp8, channel, out),
            "int4": lambda: int4_linear(x, int4, zeros, groups, out),
        }

    for rows in (1, 16, 64, 256, 2048):
        x = torch.randn(rows, inputs, dtype=torch.bfloat16, device=device)
        runs = runs_of(x, torch.empty(rows, outputs, dtype=torch.bfloat16, device=device))
        for name, run in runs.items():
            took = seconds(run)
            rate, flops = stored[name] / took, 2 * rows * outputs * inputs / took
            results[f"{name}, {rows} rows"] = {
                "us": took * 1e6, "weight_gb_per_s": rate / 1e9, "of_copy": rate / measured["copy_bytes_per_s"],
                "tflop_per_s": flops / 1e12, "of_matmul": flops / measured["matmul_flop_per_s"],
            }  # fmt: skip
    return results


class RandomWeights:
    """Weights of a shape, made on the device as they are asked for."""

    precision = "random bfloat16"
    stores_bfloat16 = True
    stored_as: str | None = None

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.config, self._device = config, device

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=torch.bfloat16, device=self._device).normal_(std=0.02)

    def has(self, name: str) -> bool:
        return not name.endswith(".bias")

    def matrix(self, name: str) -> StoredWeight:
        config = self.config
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        shapes = {
            "q_proj": (q, config.hidden_size), "k_proj": (kv, config.hidden_size), "v_proj": (kv, config.hidden_size),
            "o_proj": (config.hidden_size, q), "gate_proj": (config.intermediate_size, config.hidden_size),
            "up_proj": (config.intermediate_size, config.hidden_size),
            "down_proj": (config.hidden_size, config.intermediate_size), "lm_head": (config.vocab_size, config.hidden_size),
        }  # fmt: skip
        shape = shapes[name.removesuffix(".weight").rsplit(".", 1)[-1]]
        return StoredWeight("bf16", shape, np.empty((0, 0), dtype=np.uint8), lambda: self._random(*shape))

    def vector(self, name: str) -> torch.Tensor:
        return torch.ones(self.config.hidden_size)

    def embedding(self, name: str) -> RandomEmbedding:
        return RandomEmbedding(self._random(self.config.vocab_size, self.config.hidden_size))

    def rotary_factors(self) -> torch.Tensor | None:
        return None


class RandomEmbedding:
    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._weight[ids.to(self._weight.device)]


def engine(device: torch.device, measured: dict[str, float], config: ModelConfig = LLAMA_8B) -> dict[str, Any]:
    """Decode steps of the engine's own model and operations, beside what reading weights and keys once would take."""
    operations = TritonOperations(device, torch.bfloat16, 2048)
    model = Decoder(
        RandomWeights(config, device), Family(), operations,
        max_context=config.max_position_embeddings, device=device, threads=1, progress=lambda text: None,
    )  # fmt: skip
    pages = CONTEXT // BLOCK
    model.attach(allocate(config, 256 * pages, torch.bfloat16, device))
    per_layer = config.hidden_size * (
        2 * (config.heads + config.kv_heads) * config.head_dim + 3 * config.intermediate_size
    )
    weight_bytes = 2 * (config.layers * per_layer + config.vocab_size * config.hidden_size)
    results: dict[str, Any] = {
        "cuda_graphs": False,
        "weights": "bf16, random, Llama-3.1-8B's shape",
        "context": CONTEXT,
    }
    for sequences in (1, 16, 64, 256):
        layout = step([(CONTEXT - 1, 1)] * sequences, device)
        ids, rows = torch.randint(0, config.vocab_size, (sequences,)), torch.arange(sequences)

        def run(ids: torch.Tensor = ids, layout: StepLayout = layout, rows: torch.Tensor = rows) -> None:
            model.compute(ids, layout)
            model.logits(rows).argmax(-1).tolist()

        with torch.inference_mode():
            took = seconds(run, 10)
        kv_bytes = sequences * CONTEXT * 2 * config.kv_heads * config.head_dim * 2 * config.layers
        least = (weight_bytes + kv_bytes) / measured["copy_bytes_per_s"]
        results[f"{sequences} sequences"] = {
            "step_ms": took * 1e3, "tokens_per_s": sequences / took, "of_least_time": took / least,
        }  # fmt: skip
    return results


def transformers_generate(device: torch.device, config: ModelConfig = LLAMA_8B) -> dict[str, Any] | None:
    """Tokens per second of transformers' generate in the same shape and process; None where it is not installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    shape = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_position_embeddings, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(shape).to(torch.bfloat16).eval()
    results = {}
    for sequences in (1, 16, 64):
        prompt = torch.randint(0, config.vocab_size, (sequences, CONTEXT), device=device)
        times = []
        for tokens in (1, 33):  # the difference is 32 decode steps
            torch.cuda.synchronize()
            began = time.perf_counter()
            model.generate(prompt, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        results[f"{sequences} sequences"] = {"tokens_per_s": 32 * sequences / (times[1] - times[0])}
    return results


def tune(device: torch.device) -> None:
    """Prints the fastest tiles for attention, as rows of configs.py."""
    generation = configs.device_kind(device).generation
    tables: tuple[tuple[str, dict[str, Tiles], tuple[int, ...], list[tuple[int, int]]], ...] = (
        ("ATTENTION_DECODE", configs.ATTENTION_DECODE, (16,), [(8191, 1)] * 64),
        ("ATTENTION_PREFILL", configs.ATTENTION_PREFILL, (64, 128), [(0, 8192)]),
    )
    for name, table, heights, shares in tables:
        kept, best = table[generation], (float("inf"), table[generation])
        for tiles in (
            replace(kept, m=m, n=n, warps=warps, stages=stages)
            for m in heights for n in (16, 32, 64, 128) for warps in (4, 8) for stages in (2, 3, 4)
        ):  # fmt: skip
            table[generation] = tiles
            try:
                best = min(best, (_attend_seconds(device, shares), tiles), key=lambda each: each[0])
            except Exception as error:  # too much shared memory, in the compiler's or the driver's words
                print(f"  {tiles}: {type(error).__name__}", file=sys.stderr)
        table[generation] = kept
        print(f"{name}[{generation!r}] = {best[1]}  # {best[0] * 1e6:.0f} us", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.gpu", description="Checks and times the Triton kernels on a CUDA device."
    )
    parser.add_argument("--checks", action="store_true", help="only compare with plain torch")
    parser.add_argument("--tune", action="store_true", help="print the fastest tiles instead")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if not torch.cuda.is_available() or interpreted():
        print("bench.gpu: needs a CUDA device, and TRITON_INTERPRET unset", file=sys.stderr)
        return 1
    device, began = torch.device("cuda"), time.monotonic()
    if options.tune:
        tune(device)
        return 0
    verdicts = [each for dtype in (torch.float16, torch.bfloat16) for each in check_all(device, dtype)]
    for each in verdicts:
        print(
            f"{'right' if each.right else 'WRONG'}  {each.kernel}: {each.lost:.2e}, allowed {each.allowed:.2e}",
            flush=True,
        )
    if not all(each.right for each in verdicts):
        return 2
    if options.checks:
        return 0
    measured = yardsticks(device)
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "checks": [asdict(each) for each in verdicts],
        "measured": measured,
        "attention": attention(device, measured),
        "products": products(device, measured),
        "engine": engine(device, measured),
    }
    torch.cuda.empty_cache()
    report["transformers"] = transformers_generate(device)
    report["took_s"] = round(time.monotonic() - began)
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps({name: report[name] for name in ("measured", "attention", "engine", "transformers")}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
