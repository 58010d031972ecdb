"""Norm, gated activation, rotary and the cache write beside plain torch and float64, in fp32 and fp16."""

from __future__ import annotations

import pytest
import torch

from kernels.fp8 import CacheScales
from kernels.rms_norm import rms_norm_reference
from kernels.rotary import interleaved_rotary_reference, rotary_reference, write_cache_reference
from kernels.silu_mul import gelu_mul_reference, silu_mul_reference
from kernels.triton.add_rms_norm import add_rms_norm
from kernels.triton.gated_mul import gated_mul
from kernels.triton.rotary import rotary
from kernels.triton.write_cache import write_cache

from .closeness import assert_as_close, poisoned

FP8 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.float16]
"""Without bfloat16: the interpreter cuts bits off where a GPU rounds, so its error would be the interpreter's."""


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 80])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_the_norm_is_as_close_to_float64_as_plain_torch(dtype: torch.dtype, width: int, unit_offset: bool) -> None:
    x, weight = noise(3, width, dtype=dtype), noise(width, dtype=dtype, seed=4)
    out = poisoned(3, width, dtype=dtype)
    add_rms_norm(x, weight, 1e-5, out, unit_offset=unit_offset)
    wide, w = x.double(), weight.double() + unit_offset
    exact = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * w
    assert_as_close(out, rms_norm_reference(x, weight, 1e-5, unit_offset=unit_offset), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_is_added_before_the_norm_and_kept(dtype: torch.dtype) -> None:
    x, residual, weight = noise(2, 48, dtype=dtype), noise(2, 48, dtype=dtype, seed=5), noise(48, dtype=dtype, seed=6)
    added, out = residual.clone(), poisoned(2, 48, dtype=dtype)
    add_rms_norm(x, weight, 1e-6, out, residual=added)
    assert torch.equal(added, x + residual)
    exact_sum = added.double()
    exact = exact_sum * torch.rsqrt(exact_sum.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()
    assert_as_close(out, rms_norm_reference(added, weight, 1e-6), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gelu", [False, True])
def test_the_gated_activation_is_as_close_as_plain_torch(dtype: torch.dtype, gelu: bool) -> None:
    x = noise(2, 2 * 1200, dtype=dtype) * 4
    out = poisoned(2, 1200, dtype=dtype)
    gated_mul(x, out, gelu=gelu)
    reference = gelu_mul_reference if gelu else silu_mul_reference
    assert_as_close(out, reference(x), reference(x.double()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("half, size", [(8, 16), (6, 12), (4, 20)])
def test_rotary_turns_the_first_values_of_each_head_and_leaves_the_rest(
    dtype: torch.dtype, interleaved: bool, half: int, size: int
) -> None:
    angles = torch.rand(40, half, generator=torch.Generator().manual_seed(1)) * 6
    positions = torch.tensor([3, 39, 0])
    tall = noise(3, 7, size, dtype=dtype)
    x = tall.clone()
    rotary(x[:, 1:6], angles.cos(), angles.sin(), positions, interleaved=interleaved)
    assert torch.equal(x[:, [0, 6]], tall[:, [0, 6]])  # heads of another kind are left alone
    assert torch.equal(x[:, :, 2 * half :], tall[:, :, 2 * half :])
    reference = interleaved_rotary_reference if interleaved else rotary_reference
    part, cos, sin = tall[:, 1:6, : 2 * half], angles.cos()[positions], angles.sin()[positions]
    exact = _turned(part.double(), cos.double(), sin.double(), interleaved)
    assert_as_close(x[:, 1:6, : 2 * half], reference(part, cos, sin), exact)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The same as a product of complex numbers."""
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = torch.complex(a, b) * torch.complex(cos, sin)[:, None, :]
    parts = (turned.real, turned.imag)
    return torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("size", [16, 24])
def test_keys_and_values_land_in_their_slots_and_nowhere_else(dtype: torch.dtype, size: int) -> None:
    qkv = noise(4, 7, size, dtype=dtype)
    keys, values, slots = qkv[:, 3:5], qkv[:, 5:7], torch.tensor([17, 2, -1, 47])
    k_cache, v_cache = poisoned(3, 2, 16, size, dtype=dtype), poisoned(3, 2, 16, size, dtype=dtype)
    expected = k_cache.clone(), v_cache.clone()
    write_cache(keys, values, (k_cache, v_cache), slots)
    written = [0, 1, 3]  # a slot of -1 is padding
    for cache, rows in zip(expected, (keys, values), strict=True):
        write_cache_reference(rows[written], cache, slots[written])
    assert torch.equal(k_cache.nan_to_num(9e4), expected[0].nan_to_num(9e4))
    assert torch.equal(v_cache.nan_to_num(9e4), expected[1].nan_to_num(9e4))


def test_an_fp8_cache_holds_the_scaled_values_and_saturates() -> None:
    keys, values = noise(2, 2, 16) * 100, noise(2, 2, 16, seed=8)
    keys[0, 0, 0] = 5000.0
    written, expected = (
        (torch.zeros(1, 2, 16, 16).to(FP8), torch.zeros(1, 2, 16, 16).to(FP8)) for _ in ("kernel", "reference")
    )
    scales, slots = CacheScales(torch.tensor([0.5, 0.3]), torch.tensor([0.25, 0.07])), torch.tensor([4, 9])
    write_cache(keys, values, written, slots, scales)
    write_cache_reference(keys, expected[0], slots, scales.keys)
    write_cache_reference(values, expected[1], slots, scales.values)
    assert written[0][0, 0, 4, 0].float() == 448.0
    for cache, reference in zip(written, expected, strict=True):
        assert torch.equal(cache.float(), reference.float())
