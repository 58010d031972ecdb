"""The plan as a page for people, and as JSON for machines."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..config import BLOCK_SIZE
from ..weights.model_store import KNOWN
from .kv import VALUE_BYTES, KVShape, kv_shape, valid_splits
from .plan import DevicePlan, Wish, notes, precisions_of, serve_flags, weight_count
from .shape import ModelShape
from .weights import weight_bytes

GIB = 1 << 30
SHORT = 4096
"""A typical sequence, for a second line beside the longest one."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is known: the model, what was asked for, the device's plan (if one was named), and what fits."""

    model: str
    shape: ModelShape
    wish: Wish
    plan: DevicePlan | None
    fits: list[DevicePlan]


def as_json(report: Report) -> dict[str, Any]:
    """Bytes and counts as integers, under the names that docs/kv-memory.md explains."""
    shape, wish, plan = report.shape, report.wish, report.plan
    kv = kv_shape(shape, wish.kv_dtype)
    return {
        "model": shape.name,
        "architecture": shape.architecture,
        "parameters": weight_count(shape),
        "stored_precision": shape.stored,
        "precision": wish.precision,
        "weight_bytes": {
            precision: {**asdict(sizes), "total": sizes.total}
            for precision in precisions_of(shape)
            for sizes in [weight_bytes(shape, precision)]
        },
        "kv_cache_dtype": wish.kv_dtype,
        "kv_bytes_per_token": kv.token_bytes,
        "kv_bytes_per_block": kv.block_bytes,
        "block_size": BLOCK_SIZE,
        "max_model_len": wish.max_model_len,
        "kv_bytes_per_sequence": kv.sequence_bytes(wish.max_model_len),
        "windowed_layers": sum(window is not None for window in shape.windows),
        "tensor_parallel_sizes": valid_splits(shape),
        "device": _device_json(report, plan) if plan else None,
        "fits": [_fit_json(report, each) for each in report.fits],
        "notes": _notes(report),
    }


def _notes(report: Report) -> list[str]:
    said = notes(report.shape, report.wish, _shown(report))
    if report.plan and not Path(report.model).expanduser().exists() and report.model.lower() not in KNOWN:
        said.append(
            f"{report.model} is known here by its config.json alone: in the command, give the folder that holds its weights"
        )
    return said


def _shown(report: Report) -> list[DevicePlan]:
    return ([report.plan] if report.plan else []) + report.fits


def _device_json(report: Report, plan: DevicePlan) -> dict[str, Any]:
    kv = kv_shape(report.shape, report.wish.kv_dtype, plan.ranks)
    values = asdict(plan)
    values["weights"]["total"] = plan.weights.total
    return {**values, "kv_bytes_per_token": kv.token_bytes, "serve": _serve(report, plan)}


def _fit_json(report: Report, plan: DevicePlan) -> dict[str, Any]:
    return {
        "device": plan.device,
        "tensor_parallel_size": plan.ranks,
        "precision": plan.precision,
        "tokens": plan.tokens,
        "sequences": plan.sequences,
        "serve": _serve(report, plan),
    }


def as_text(report: Report) -> str:
    lines = [*_model_lines(report.shape), "", *_weight_lines(report.shape), "", *_kv_lines(report.shape, report.wish)]
    if report.plan:
        lines += ["", *_device_lines(report, report.plan)]
    lines += ["", *_fit_lines(report)]
    said = _notes(report)
    if said:
        lines += ["", *(f"note: {sentence}" for sentence in said)]
    return "\n".join(lines)


def _model_lines(shape: ModelShape) -> list[str]:
    heads = (
        f"{shape.heads} heads over a latent of {shape.latent.kv_rank} + {shape.latent.rope_dim}"
        if shape.latent
        else f"{shape.heads} query and {shape.kv_heads} KV heads of {shape.head_dim}"
    )
    return [
        f"{shape.name} ({shape.architecture}): {weight_count(shape):,} weights, published in {shape.stored}",
        f"{shape.layers} layers, {heads}, {shape.max_positions:,} positions; splits over "
        f"{', '.join(map(str, valid_splits(shape)))} GPUs",
    ]


def _weight_lines(shape: ModelShape) -> list[str]:
    columns = {precision: weight_bytes(shape, precision) for precision in precisions_of(shape)}
    rows = {
        "linear layers": [sizes.linear for sizes in columns.values()],
        "embeddings": [sizes.embeddings for sizes in columns.values()],
        "norms, routers": [sizes.norms for sizes in columns.values()],
        "together": [sizes.total for sizes in columns.values()],
    }
    head = "Weights, GiB    " + "".join(f"{precision:>10}" for precision in columns)
    return [head, *(f"  {name:14}" + "".join(f"{value / GIB:10.2f}" for value in row) for name, row in rows.items())]


def _kv_lines(shape: ModelShape, wish: Wish) -> list[str]:
    kv, size = kv_shape(shape, wish.kv_dtype), VALUE_BYTES[wish.kv_dtype]
    if shape.latent:
        sum_of = f"{shape.layers} layers x ({shape.latent.kv_rank} + {shape.latent.rope_dim}) x {size}"
    else:
        sum_of = f"2 x {shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim} x {size}"
    lines = [f"KV cache, {wish.kv_dtype}: {kv.token_bytes:,} bytes per token = {sum_of}"]
    windowed = sorted({window for window in shape.windows if window is not None})
    if windowed:
        count = sum(window is not None for window in shape.windows)
        sizes = ", ".join(f"{window:,}" for window in windowed)
        lines.append(f"  {count} of {shape.layers} layers keep at most a window of {sizes} tokens")
    lines += [_sequence_line(kv, tokens) for tokens in sorted({min(SHORT, wish.max_model_len), wish.max_model_len})]
    return lines


def _sequence_line(kv: KVShape, tokens: int) -> str:
    return f"  a sequence of {tokens:,} tokens: {kv.sequence_bytes(tokens) / GIB:,.3f} GiB"


def _device_lines(report: Report, plan: DevicePlan) -> list[str]:
    used = f"{report.wish.utilization_ppm / 1_000_000:g}"
    lines = [
        f"Each of {plan.ranks} x {plan.device} ({plan.memory_bytes / GIB:.1f} GiB, {used} of it used), "
        f"weights in {plan.precision}"
    ]
    for name, value in (
        ("weights", plan.weights.total),
        ("activations", plan.activation_bytes),
        ("graphs", plan.graph_bytes),
        ("runtime", plan.runtime_bytes),
        ("KV pool", plan.pool_bytes),
    ):
        lines.append(f"  {name:14}{value / GIB:10.2f} GiB")
    if plan.pool_bytes < 0:
        return [*lines, f"  It does not fit: {-plan.pool_bytes / GIB:.2f} GiB are missing before the first token."]
    lines.append(f"  {plan.blocks:,} blocks of {BLOCK_SIZE}: {plan.tokens:,} tokens")
    if plan.fits:
        lines.append(f"  {plan.sequences:,} sequences of {report.wish.max_model_len:,} tokens at once")
        lines.append(_command(report, plan))
    else:
        lines.append(
            f"  No room for one sequence of {report.wish.max_model_len:,} tokens; the longest has {plan.longest:,}."
        )
        if plan.longest >= BLOCK_SIZE:
            lines.append(_command(report, plan))
    return lines


def _fit_lines(report: Report) -> list[str]:
    if not report.fits:
        return [f"No GPU known here holds it with {report.wish.max_model_len:,} tokens: lower --max-model-len."]
    lines = [f"Fewest GPUs that hold it and a sequence of {report.wish.max_model_len:,} tokens:"]
    lines += [
        f"  {plan.ranks} x {plan.device:10} {plan.precision:5} {plan.tokens:>12,} tokens {plan.sequences:>6,} at once"
        for plan in report.fits
    ]
    return lines


def _command(report: Report, plan: DevicePlan) -> str:
    return f"  {_serve(report, plan)}"


def _serve(report: Report, plan: DevicePlan) -> str:
    return shlex.join(serve_flags(report.shape, report.wish, plan, report.model))
