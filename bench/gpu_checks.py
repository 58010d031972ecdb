"""Every Triton kernel on a device beside plain torch and float64: is it right there, before it is timed?

The rule is the tests': max|kernel - float64| <= 2 max|plain torch in the same precision - float64| + 1e-5 scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from kernels.batch import BLOCK, StepLayout
from kernels.fp8 import CacheScales, block_scales, group_scales, row_scales, spread_blocks, to_fp8
from kernels.low_rank import AdapterPairs, LowRank, adapt_rows
from kernels.paged_attention import paged_attention_reference
from kernels.quantised import awq_dequantise, awq_pack, int8_linear_reference, quantise_int8
from kernels.rms_norm import rms_norm_reference
from kernels.rotary import interleaved_rotary_reference, rotary_reference, write_cache_reference
from kernels.sampling import DrawSettings, draw_reference
from kernels.silu_mul import gelu_mul_reference, silu_mul_reference
from kernels.triton.add_rms_norm import add_rms_norm
from kernels.triton.attention import paged_attention, plan_attention
from kernels.triton.configs import fp8_casts
from kernels.triton.fp8_linear import fp8_linear
from kernels.triton.gated_mul import gated_mul
from kernels.triton.int4_linear import launch_int4
from kernels.triton.int8_linear import int8_linear
from kernels.triton.low_rank import launch_adapt, plan_adapters
from kernels.triton.rotary import rotary
from kernels.triton.sampling import draw
from kernels.triton.write_cache import write_cache

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Verdict:
    """`lost` and `allowed` are errors beside float64, in the output's own unit."""

    kernel: str
    lost: float
    allowed: float

    @property
    def right(self) -> bool:
        return self.lost <= self.allowed  # false for NaN


def verdict(kernel: str, actual: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor) -> Verdict:
    lost = float((actual.double() - exact).abs().max())
    allowed = 2 * float((plain.double() - exact).abs().max()) + 1e-5 * float(exact.abs().max())
    return Verdict(kernel, lost, allowed)


class Source:
    """Random inputs on one device, the same at every run."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._random = torch.Generator().manual_seed(7)

    def noise(self, *shape: int, wide: bool = False) -> torch.Tensor:
        values = torch.randn(*shape, generator=self._random)
        return values.to(self.device, torch.float32 if wide else self.dtype)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=self._random)

    def poison(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=self.dtype, device=self.device)


def check_all(device: torch.device, dtype: torch.dtype, width: int = 1024) -> list[Verdict]:
    """One verdict per form of each kernel; `width` scales the shapes (a multiple of 64)."""
    source = Source(device, dtype)
    parts: tuple[Callable[[Source, int], Iterator[Verdict]], ...] = (
        _elementwise,
        _rotary,
        _attention,
        _fp8_cache,
        _low_rank,
        _linear,
        _fp8,
        _draw,
    )
    return [each for part in parts for each in part(source, width)]


def _elementwise(source: Source, width: int) -> Iterator[Verdict]:
    x, weight = source.noise(3, width), source.noise(width)
    for offset in (False, True):
        out = source.poison(3, width)
        add_rms_norm(x, weight, 1e-5, out, unit_offset=offset)
        wide = x.double()
        exact = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * (weight.double() + offset)
        yield verdict(f"norm, offset {offset}", out, rms_norm_reference(x, weight, 1e-5, unit_offset=offset), exact)
    both = source.noise(3, 2 * width)
    for gelu, reference in ((False, silu_mul_reference), (True, gelu_mul_reference)):
        out = source.poison(3, width)
        gated_mul(both, out, gelu=gelu)
        yield verdict("gelu" if gelu else "silu", out, reference(both), reference(both.double()))


def _rotary(source: Source, width: int) -> Iterator[Verdict]:
    size = min(width // 4, 128)
    angles = source.noise(50, size // 2, wide=True)
    cos, sin, positions = angles.cos(), angles.sin(), torch.tensor([3, 49], device=source.device)
    for interleaved, reference in ((False, rotary_reference), (True, interleaved_rotary_reference)):
        x = source.noise(2, 5, size)
        turned = x.clone()
        rotary(turned, cos, sin, positions, interleaved=interleaved)
        first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
        c, s = (table[positions].double()[:, None] for table in (cos, sin))
        a, b = first.double() * c - second.double() * s, second.double() * c + first.double() * s
        exact = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
        yield verdict(f"rotary, interleaved {interleaved}", turned, reference(x, cos[positions], sin[positions]), exact)
    keys, values, slots = (
        source.noise(2, 2, size),
        source.noise(2, 2, size),
        torch.tensor([17, 2], device=source.device),
    )
    written, expected = (
        [torch.zeros(3, 2, BLOCK, size, dtype=source.dtype, device=source.device) for _ in "kv"] for _ in "12"
    )
    write_cache(keys, values, (written[0], written[1]), slots)
    for cache, rows in zip(expected, (keys, values), strict=True):
        write_cache_reference(rows, cache, slots)
    for name, actual, cache in zip(("keys", "values"), written, expected, strict=True):
        yield verdict(f"cache write, {name}", actual, cache, cache.double())


def step(shares: list[tuple[int, int]], device: torch.device) -> StepLayout:
    """One sequence per (tokens in the cache, tokens of this step), each in blocks of its own, in a scattered order."""
    counts = [-(-(start + count) // BLOCK) for start, count in shares]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1))
    tables = torch.zeros(len(shares), max(counts), dtype=torch.int64)
    starts, query_start, positions = torch.tensor([0, *counts]).cumsum(0).tolist(), [0], []
    for row, ((start, count), blocks) in enumerate(zip(shares, counts, strict=True)):
        tables[row, :blocks] = order[starts[row] : starts[row] + blocks]
        positions.append(torch.arange(start, start + count))
        query_start.append(query_start[-1] + count)
    owner = torch.repeat_interleave(torch.arange(len(shares)), torch.tensor([count for _, count in shares]))
    flat = torch.cat(positions)
    slots = tables[owner, flat // BLOCK] * BLOCK + flat % BLOCK
    return StepLayout(
        query_start, [start + count for start, count in shares], flat.to(device), slots.to(device), tables.to(device)
    )


def _attention(source: Source, width: int) -> Iterator[Verdict]:
    size, long = min(width // 4, 128), width // 2
    forms: list[tuple[str, list[tuple[int, int]], int, int | None, float | None]] = [
        ("decode", [(long, 1), (3, 1)], 1, None, None),
        ("decode in parts", [(long, 1), (3, 1)], 4, None, None),
        ("prefill", [(0, 40), (5, 3)], 1, None, None),
        ("mixed, window", [(long, 1), (0, 20)], 1, 24, None),
        ("mixed, softcap", [(long, 1), (0, 20)], 1, None, 5.0),
    ]
    for name, shares, splits, window, cap in forms:
        layout = step(shares, source.device)
        blocks = int(layout.block_tables.max()) + 1
        q, caches = source.noise(layout.tokens, 6, size), [source.noise(blocks, 2, BLOCK, size) for _ in "kv"]
        out, scale = source.poison(layout.tokens, 6, size), size**-0.5
        plan = replace(plan_attention(layout, 6, 2, window), splits=splits)
        paged_attention(q, (caches[0], caches[1]), layout.block_tables, plan, scale, out, window=window, softcap=cap)
        keys, values = caches
        plain = paged_attention_reference(
            q, keys, values, layout, scale, window=window, softcap=cap, wide=source.dtype
        )  # fmt: skip
        exact = paged_attention_reference(
            q.double(), keys.double(), values.double(), layout, scale, window=window, softcap=cap, wide=torch.float64
        )  # fmt: skip
        yield verdict(f"attention, {name}", out, plain, exact)


def _fp8_cache(source: Source, width: int) -> Iterator[Verdict]:
    """Written and read with a scale for each head; on a GPU older than 8.9 there is none."""
    if not fp8_casts(source.device):
        return
    size, layout = min(width // 4, 128), step([(width // 2, 1), (0, 20)], source.device)
    scales = CacheScales(*(torch.tensor(pair, device=source.device) for pair in ((0.03, 0.5), (0.02, 0.25))))
    shape, slots = (int(layout.block_tables.max()) + 1, 2, BLOCK, size), torch.arange(5, 35, device=source.device)
    written, expected = ([torch.zeros(shape, device=source.device).to(FP8) for _ in "kv"] for _ in "12")
    rows = [source.noise(len(slots), 2, size) * 3 for _ in "kv"]
    write_cache(rows[0], rows[1], (written[0], written[1]), slots, scales)
    for cache, own, of_heads in zip(expected, rows, (scales.keys, scales.values), strict=True):
        write_cache_reference(own, cache, slots, of_heads)
    for name, actual, cache in zip(("keys", "values"), written, expected, strict=True):
        yield verdict(f"fp8 cache write, {name}", actual, cache, cache.double())
    keys, values = (to_fp8(source.noise(*shape), of_heads[:, None, None]) for of_heads in (scales.keys, scales.values))
    q, scale = source.noise(layout.tokens, 6, size), size**-0.5
    for splits in (1, 4):
        out = source.poison(layout.tokens, 6, size)
        plan = replace(plan_attention(layout, 6, 2), splits=splits)
        paged_attention(q, (keys, values), layout.block_tables, plan, scale, out, scales=scales)
        plain = paged_attention_reference(q, keys, values, layout, scale, scales=scales, wide=source.dtype)
        exact = paged_attention_reference(
            q.double(), keys, values, layout, scale, scales=scales, wide=torch.float64
        )  # fmt: skip
        yield verdict(f"attention, fp8 cache in {splits}", out, plain, exact)


def _low_rank(source: Source, width: int) -> Iterator[Verdict]:
    outputs, layout = width // 2, replace(step([(3, 1), (0, 20), (7, 1)], source.device), adapters=(1, 0, None))
    pairs = AdapterPairs(
        {
            slot: LowRank(source.noise(rank, width) * 0.1, source.noise(outputs, rank))
            for slot, rank in ((0, 8), (1, 16))
        }
    )
    wide = AdapterPairs()
    for slot in (0, 1):
        pair = pairs.get(slot)
        assert pair is not None
        wide.add(slot, LowRank(pair.a.double(), pair.b.double()))
    x, before, stacked = source.noise(layout.tokens, width), source.noise(layout.tokens, outputs), pairs.stacked()
    assert stacked is not None
    for splits in (1, 2):
        out, plain, exact = before.clone(), before.clone(), before.double()
        adapt_rows(x, pairs, layout.rows_by_adapter(), plain)
        adapt_rows(x.double(), wide, layout.rows_by_adapter(), exact)
        launch_adapt(x, stacked, plan_adapters(layout), out, splits)
        yield verdict(f"adapters in {splits}", out, plain, exact)


def _linear(source: Source, width: int) -> Iterator[Verdict]:
    outputs = width // 2 + 8
    for rows in (1, 20):
        x = source.noise(rows, width)
        weight, scales = quantise_int8(source.noise(outputs, width, wide=True))
        out = source.poison(rows, outputs)
        int8_linear(x, weight, scales, out)
        exact = x.double() @ (weight.double() * scales.double()[:, None]).t()
        yield verdict(f"int8 product, {rows} rows", out, int8_linear_reference(x, weight, scales), exact)
        groups = width // 32
        packed, zeros = (awq_pack(source.integers(16, n, outputs)).to(source.device) for n in (width, groups))
        factors = source.noise(groups, outputs).abs() * 0.05
        for splits in (1, 2):
            out = source.poison(rows, outputs)
            launch_int4(x, packed, zeros, factors, out, splits)
            exact = x.double() @ awq_dequantise(packed, zeros, factors.double())
            plain = x @ awq_dequantise(packed, zeros, factors)
            yield verdict(f"int4 product, {rows} rows in {splits}", out, plain, exact)


def _fp8(source: Source, width: int) -> Iterator[Verdict]:
    outputs = width // 2
    x, weight = source.noise(3, width, wide=True), source.noise(outputs, width, wide=True)
    by_row, by_group = row_scales(x), group_scales(x)
    channel, blocks = row_scales(weight), block_scales(weight)
    forms = (
        ("channel", by_row, channel, by_row[:, None].expand_as(x), channel[:, None].expand_as(weight)),
        (
            *("block", by_group, blocks),
            by_group.repeat_interleave(128, dim=1)[:, :width],
            spread_blocks(blocks, outputs, width),
        ),
    )
    for name, x_scales, w_scales, x_spread, w_spread in forms:
        narrow_x, narrow_w = to_fp8(x, x_spread), to_fp8(weight, w_spread)
        out = source.poison(3, outputs)
        fp8_linear(narrow_x, x_scales, narrow_w, w_scales, out)
        wide_x, wide_w = narrow_x.double() * x_spread.double(), narrow_w.double() * w_spread.double()
        plain = wide_x.to(source.dtype) @ wide_w.to(source.dtype).t()
        yield verdict(f"fp8 product by {name}", out, plain, wide_x @ wide_w.t())


def _draw(source: Source, width: int) -> Iterator[Verdict]:
    """Tokens are equal or not: the verdict's error is the number of rows that differ from the reference's."""
    logits = source.noise(3, width, wide=True) * 2
    settings = DrawSettings([0.0, 1.0, 0.7], [0, 0, 20], [1.0, 0.8, 0.9], [0.0, 0.0, 0.02], [0.5, 0.3, 0.9])
    drawn, expected = draw(logits, settings), draw_reference(logits.clone(), settings)
    yield Verdict("sampling", float(sum(a != b for a, b in zip(drawn, expected, strict=True))), 0.0)
