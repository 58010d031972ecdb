"""`metergate engine plan MODEL …`: the flags of `engine serve` that decide about memory, and the GPU to plan for."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from ..cli import bytes_flag, tokens_flag
from ..config import EngineConfig
from ..errors import ConfigError, EngineError
from .devices import DEVICES, Device, find_device
from .kv import VALUE_BYTES, valid_splits
from .plan import Wish, plan_device, what_fits
from .report import Report, as_json, as_text
from .shape import ModelShape, known_names, read_shape

QUANTIZATION = {
    "fp8": "fp8",
    "int8": "int8",
    "int4": "int4-g32",
    "int4-g64": "int4-g64",
    "int4-g128": "int4-g128",
    "awq": "int4",
    "gptq": "int4",
}
"""The flag's values (as in config.ROUNDED, and checkpoints' names) and what they are in weights.py."""


def plan(argv: Sequence[str]) -> int:
    """Prints the plan; returns the exit status. A model or flag that cannot be planned is one line on stderr and status 1."""
    given = _parser().parse_args(argv)
    try:
        report = _report(given)
    except EngineError as error:
        print(f"local_engine: error: {error}", file=sys.stderr)
        return 1
    try:
        print(json.dumps(as_json(report), indent=2) if given.json else as_text(report), flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _report(given: argparse.Namespace) -> Report:
    shape = read_shape(given.model)
    wish = _wish(given, shape)
    device = _device(given)
    ranks = given.tensor_parallel_size or 1
    if ranks > 1 and device is None:
        raise ConfigError("--tensor-parallel-size needs a GPU to plan for: add --gpu, such as --gpu H100")
    planned = None
    if device is not None:
        if given.tensor_parallel_size is None:  # the fewest that do; else the one, with what is missing
            plans = [plan_device(shape, wish, device, each) for each in valid_splits(shape, 8)]
            planned = next((each for each in plans if each.fits), plans[0])
        else:
            planned = plan_device(shape, wish, device, ranks)
    return Report(given.model, shape, wish, planned, what_fits(shape, wish))


def _wish(given: argparse.Namespace, shape: ModelShape) -> Wish:
    length = given.max_model_len or shape.max_positions
    if length > shape.max_positions:
        raise ConfigError(f"--max-model-len {length} is more than the model's {shape.max_positions} positions")
    precision = QUANTIZATION[given.quantization] if given.quantization else shape.stored
    if precision == "fp32" or (given.dtype != "auto" and not given.quantization):
        if shape.stored in ("fp8", "int4"):
            raise ConfigError(f"--dtype does not change weights that are published in {shape.stored}: leave it out")
        precision = "fp32" if given.dtype == "float32" else "bf16"
    kv_dtype = given.kv_cache_dtype
    if kv_dtype == "fp8_e4m3":
        kv_dtype = "fp8"
    if kv_dtype == "auto":
        kv_dtype = given.dtype if given.dtype != "auto" else "bfloat16"
    # The same checks, in the same words, as `engine serve` makes.
    config = EngineConfig(
        given.model,
        max_model_len=length,
        max_num_seqs=given.max_num_seqs,
        max_num_batched_tokens=given.max_num_batched_tokens,
        gpu_memory_utilization=given.gpu_memory_utilization,
        kv_cache_memory_bytes=given.kv_cache_memory_bytes,
        tensor_parallel_size=given.tensor_parallel_size or 1,
    )
    return Wish(
        precision=precision,
        kv_dtype=kv_dtype,
        max_model_len=length,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        utilization_ppm=round(config.gpu_memory_utilization * 1_000_000),
        kv_cache_memory_bytes=config.kv_cache_memory_bytes,
        eager=given.enforce_eager,
    )


def _device(given: argparse.Namespace) -> Device | None:
    if given.gpu_memory_bytes is not None:
        if given.gpu_memory_bytes < 1:
            raise ConfigError(f"--gpu-memory-bytes must be at least 1, not {given.gpu_memory_bytes}")
        return Device(given.gpu or "GPU", given.gpu_memory_bytes, fp8=True)
    return find_device(given.gpu) if given.gpu else None


def _parser() -> argparse.ArgumentParser:
    default = {name: field.default for name, field in EngineConfig.__dataclass_fields__.items()}
    parser = argparse.ArgumentParser(
        prog="metergate engine plan",
        description="The memory plan of a model, from its config.json alone.",
        epilog=f"Known names: {', '.join(known_names())}.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", help="a folder with config.json, a config.json, or a known name")
    add("--gpu", help=f"plan for this GPU: {', '.join(device.name for device in DEVICES)}")
    add("--gpu-memory-bytes", type=bytes_flag, help="plan for a GPU of so much memory, such as 80G")
    add("--tensor-parallel-size", "-tp", type=int, help="default: the fewest GPUs that do")
    add("--max-model-len", type=tokens_flag, help="tokens of prompt plus output (default: the model's positions)")
    add("--max-num-seqs", type=int, default=default["max_num_seqs"])
    add("--max-num-batched-tokens", type=tokens_flag, default=default["max_num_batched_tokens"])
    add("--gpu-memory-utilization", type=float, default=default["gpu_memory_utilization"])
    add("--kv-cache-memory-bytes", type=bytes_flag, help="at most so much KV cache per GPU")
    add("--quantization", "-q", choices=sorted(QUANTIZATION))
    add("--dtype", choices=("auto", *sorted(set(VALUE_BYTES) - {"fp8"})), default="auto")
    add("--kv-cache-dtype", choices=("auto", *sorted(VALUE_BYTES), "fp8_e4m3"), default="auto")
    add("--enforce-eager", action="store_true", help="without CUDA graphs")
    add("--json", action="store_true", help="for machines")
    return parser
