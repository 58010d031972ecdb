"""Putting it together: what is left for the KV cache on a device, and which devices do.

    pool = memory x utilisation - weights - activations - graphs - runtime

Weights, KV and activations are counted; graphs and runtime are allowances (named below), which an engine measures when it
starts. Everything is integers: bytes, blocks, tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config import BLOCK_SIZE
from ..errors import ConfigError
from .devices import DEVICES, Device
from .kv import KVShape, kv_shape, valid_splits
from .limits import unsupported
from .shape import ModelShape
from .weights import WeightBytes, parts, weight_bytes

MIB = 1 << 20
GRAPH_BYTES_PER_LAYER = 8 * MIB
"""Allowance: the graphs of all decode sizes share one pool of memory; what remains is their nodes and parameters. Ranks of one
model run without."""
RUNTIME_BYTES = 512 * MIB
"""Allowance: CUDA context, loaded kernels, the matrix library's workspace, fragmentation."""
NCCL_BYTES = 384 * MIB
"""Allowance: NCCL's buffers, where there is more than one rank."""
LOGIT_COPIES = 3
"""float32 rows of the vocabulary alive at once while a token is drawn."""
MOST_RANKS = 8


@dataclass(frozen=True, slots=True)
class Wish:
    """What the flags say. `memory_bytes` is what the device reports in total."""

    precision: str
    kv_dtype: str
    max_model_len: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    utilization_ppm: int = 900_000
    kv_cache_memory_bytes: int | None = None
    eager: bool = False


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """One of `ranks` equal devices. `pool_bytes` may be negative: so much is missing."""

    device: str
    memory_bytes: int
    ranks: int
    precision: str
    weights: WeightBytes
    activation_bytes: int
    graph_bytes: int
    runtime_bytes: int
    pool_bytes: int
    blocks: int
    tokens: int
    """That the pool holds. Windowed layers keep less of a longer sequence: with them, in sequences of `max_model_len`."""
    longest: int
    """Longest context that one sequence can have in the pool (0: none)."""
    sequences: int
    """That fit at once, each of `max_model_len` tokens."""
    fits: bool


def weight_count(shape: ModelShape) -> int:
    return sum(part.parameters for part in parts(shape))


def plan_device(shape: ModelShape, wish: Wish, device: Device, ranks: int) -> DevicePlan:
    """Raises `ConfigError` for a split that the heads do not allow."""
    valid = valid_splits(shape)
    if ranks not in valid:
        raise ConfigError(
            f"--tensor-parallel-size {ranks} does not divide {shape.heads} query and {shape.kv_heads} KV heads; valid are "
            f"{', '.join(map(str, valid))}"
        )
    weights = weight_bytes(shape, wish.precision, ranks)
    kv = kv_shape(shape, wish.kv_dtype, ranks)
    activations = activation_bytes(shape, wish, ranks)
    graphs = 0 if wish.eager or ranks > 1 else GRAPH_BYTES_PER_LAYER * shape.layers
    runtime = RUNTIME_BYTES + (NCCL_BYTES if ranks > 1 else 0)
    usable = device.memory_bytes * wish.utilization_ppm // 1_000_000
    left = usable - weights.total - activations - graphs - runtime
    pool = left if wish.kv_cache_memory_bytes is None or left < 0 else min(wish.kv_cache_memory_bytes, left)
    blocks = max(0, pool // kv.block_bytes)
    sequences = max(0, pool // kv.sequence_bytes(wish.max_model_len))
    return DevicePlan(
        device=device.name,
        memory_bytes=device.memory_bytes,
        ranks=ranks,
        precision=wish.precision,
        weights=weights,
        activation_bytes=activations,
        graph_bytes=graphs,
        runtime_bytes=runtime,
        pool_bytes=pool,
        blocks=blocks,
        tokens=_tokens(kv, max(0, pool), wish.max_model_len),
        longest=longest_context(kv, pool, shape.max_positions),
        sequences=sequences,
        fits=sequences >= 1,
    )


def _tokens(kv: KVShape, pool: int, length: int) -> int:
    if not any(kv.windows):
        return pool // kv.block_bytes * BLOCK_SIZE
    return pool * length // kv.sequence_bytes(length) // BLOCK_SIZE * BLOCK_SIZE


def activation_bytes(shape: ModelShape, wish: Wish, ranks: int) -> int:
    """The buffers of one step of `max_num_batched_tokens` rows, which are never freed, and the logits of `max_num_seqs` rows."""
    size = 4 if wish.precision == "fp32" else 2
    if shape.latent:
        query = shape.heads * (shape.latent.nope_dim + shape.latent.rope_dim)
        attended = shape.heads * shape.latent.value_dim
        qkv = query + shape.heads * (shape.latent.nope_dim + shape.latent.value_dim)
        whole = (shape.latent.q_rank or 0) + shape.latent.kv_rank + shape.latent.rope_dim
    else:
        attended = shape.heads * shape.head_dim
        qkv = attended + 2 * max(shape.kv_heads, ranks) * shape.head_dim
        whole = 0
    forward = 3 * shape.intermediate
    if shape.experts:
        routed = shape.experts.chosen + shape.experts.shared
        # A token's copies for its experts, and what comes back of them, are whole on every rank.
        forward, whole = max(forward, 3 * routed * shape.experts.intermediate), whole + 2 * routed * shape.hidden
    whole += shape.hidden if ranks > 1 and shape.experts else 0  # each rank's part of a sum
    width = 2 * shape.hidden + whole + -(-(qkv + attended + forward) // ranks)
    logits = LOGIT_COPIES * 4 * wish.max_num_seqs * shape.vocabulary
    return wish.max_num_batched_tokens * width * size + logits


def longest_context(kv: KVShape, pool: int, most: int) -> int:
    """The most tokens (in whole blocks, at most `most`) of which one sequence fits into `pool` bytes."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kv.sequence_bytes(middle) <= pool else (low, middle - 1)
    return low


def precisions_of(shape: ModelShape) -> list[str]:
    """From the published one downwards: nobody gains by widening."""
    if shape.stored == "int4":
        return ["int4"]
    return ["fp8", "int4"] if shape.stored == "fp8" else ["bf16", "fp8", "int8", "int4"]


def what_fits(shape: ModelShape, wish: Wish) -> list[DevicePlan]:
    """For each device and precision the fewest devices (at most 8) that hold one sequence of `max_model_len`."""
    found = []
    for device in DEVICES:
        for precision in precisions_of(shape):
            if precision == "fp8" and not device.fp8:
                continue
            narrow = wish.kv_dtype == "fp8" and not device.fp8
            asked = replace(wish, precision=precision, kv_cache_memory_bytes=None)
            asked = replace(asked, kv_dtype="bfloat16") if narrow else asked
            plans = (plan_device(shape, asked, device, ranks) for ranks in valid_splits(shape, MOST_RANKS))
            best = next((plan for plan in plans if plan.fits), None)
            if best is not None:
                found.append(best)
    return found


def serve_flags(shape: ModelShape, wish: Wish, plan: DevicePlan, model: str) -> list[str]:
    """The command that serves this plan, word by word; with a context that fits where the wished one does not."""
    words = ["metergate", "engine", "serve", model]
    if plan.ranks > 1:
        words += ["--tensor-parallel-size", str(plan.ranks)]
    if plan.precision not in ("bf16", "fp32") and plan.precision != shape.stored:
        words += ["--quantization", {"int4": "awq", "int4-g32": "int4"}.get(plan.precision, plan.precision)]
    if plan.precision == "fp32":
        words += ["--dtype", "float32"]
    elif any(device.name == plan.device and not device.bf16 for device in DEVICES):
        words += ["--dtype", "float16"]
    if wish.kv_dtype == "fp8":
        words += ["--kv-cache-dtype", "fp8"]
    length = wish.max_model_len if plan.fits else plan.longest // BLOCK_SIZE * BLOCK_SIZE
    if length != shape.max_positions:
        words += ["--max-model-len", str(length)]
    if wish.utilization_ppm != 900_000:
        words += ["--gpu-memory-utilization", f"{wish.utilization_ppm / 1_000_000:g}"]
    return words


def notes(shape: ModelShape, wish: Wish, plans: Sequence[DevicePlan]) -> list[str]:
    """What a reader must know beside the figures of `plans`."""
    asked = {(plan.precision, plan.ranks) for plan in plans} or {(wish.precision, 1)}
    found = dict.fromkeys(
        sentence
        for precision, ranks in sorted(asked)
        for sentence in unsupported(shape, precision, wish.kv_dtype, ranks)
    )
    most = max(ranks for _, ranks in asked)
    if most > shape.kv_heads and not shape.latent:
        found[f"{most} ranks share {shape.kv_heads} KV heads: each head is kept {most // shape.kv_heads} times"] = None
    if most > 1 and shape.latent:
        found[
            "the latent KV cache is the same on every rank: a rank has more room for it, not fewer bytes per token"
        ] = None
    return list(found)
