"""Products with weights in 8 and 4 bits beside plain torch and float64."""

from __future__ import annotations

import pytest
import torch

from kernels.fp8 import block_scales, group_scales, row_scales, spread_blocks, to_fp8
from kernels.quantised import (
    awq_dequantise,
    awq_pack,
    awq_unpack,
    int8_linear_reference,
    quantise_int8,
)
from kernels.triton.fp8_linear import fp8_linear
from kernels.triton.int4_linear import launch_int4
from kernels.triton.int8_linear import int8_linear

from .closeness import assert_as_close, poisoned

DTYPES = [torch.float32, torch.float16]


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 3) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, outputs, inputs", [(1, 40, 72), (18, 33, 32)])
def test_int8_weights_multiply_as_closely_as_plain_torch(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    weight, scales = quantise_int8(noise(outputs, inputs))
    x, out = noise(rows, inputs, dtype=dtype, seed=4), poisoned(rows, outputs, dtype=dtype)
    int8_linear(x, weight, scales, out)
    exact = x.double() @ (weight.double() * scales.double()[:, None]).t()
    assert_as_close(out, int8_linear_reference(x, weight, scales), exact)


def test_int8_rounds_by_the_largest_of_each_row() -> None:
    weight, scales = quantise_int8(torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0]]))
    assert weight.tolist() == [[64, -127, 32], [0, 0, 0]]
    assert scales.tolist() == pytest.approx([2 / 127, 1.0])


def test_awqs_order_of_nibbles_is_that_of_an_independent_decode() -> None:
    packed = awq_pack(torch.arange(8)[None, :])
    word = int(packed.item()) & 0xFFFFFFFF
    assert f"{word:08x}" == "75316420"  # written as hex, highest nibble first: columns 7 5 3 1 6 4 2 0
    values = torch.randint(0, 16, (3, 24), generator=torch.Generator().manual_seed(2))
    assert torch.equal(awq_unpack(awq_pack(values)), values.to(torch.int32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("rows", [1, 17])
def test_awq_weights_multiply_as_closely_as_plain_torch(rows: int, splits: int, dtype: torch.dtype) -> None:
    outputs, inputs, group = 40, 96, 32
    random = torch.Generator().manual_seed(6)
    weight = awq_pack(torch.randint(0, 16, (inputs, outputs), generator=random))
    zeros = awq_pack(torch.randint(0, 16, (inputs // group, outputs), generator=random))
    scales = (torch.rand(inputs // group, outputs, generator=random) * 0.1).to(dtype)
    x, out = noise(rows, inputs, dtype=dtype), poisoned(rows, outputs, dtype=dtype)
    launch_int4(x, weight, zeros, scales, out, splits)
    exact = x.double() @ awq_dequantise(weight, zeros, scales.double())
    assert_as_close(out, x @ awq_dequantise(weight, zeros, scales), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["tensor", "channel", "block"])
def test_fp8_products_equal_those_of_the_widened_values(kind: str, dtype: torch.dtype) -> None:
    rows, outputs, inputs = 3, 140, 160
    x, weight = noise(rows, inputs), noise(outputs, inputs, seed=5)
    if kind == "block":
        x_scales, w_scales = group_scales(x), block_scales(weight)
        x_spread = x_scales.repeat_interleave(128, dim=1)[:, :inputs]
        w_spread = spread_blocks(w_scales, outputs, inputs)
    else:
        x_scales = row_scales(x)
        w_scales = row_scales(weight) if kind == "channel" else row_scales(weight).amax().reshape(1)
        x_spread, w_spread = x_scales[:, None].expand(-1, inputs), w_scales[:, None].expand(outputs, inputs)
    narrow_x, narrow_w = to_fp8(x, x_spread), to_fp8(weight, w_spread)
    out = poisoned(rows, outputs, dtype=dtype)
    fp8_linear(narrow_x, x_scales, narrow_w, w_scales, out)
    wide_x, wide_w = narrow_x.double() * x_spread.double(), narrow_w.double() * w_spread.double()
    assert_as_close(out, wide_x.to(dtype) @ wide_w.to(dtype).t(), wide_x @ wide_w.t())
    assert float((wide_x - x).abs().max() / x.abs().max()) < 2**-4  # three bits of mantissa


def test_fp8_scales_of_different_kinds_do_not_mix() -> None:
    x, weight = noise(2, 128), noise(16, 128)
    with pytest.raises(AssertionError, match="block-wise weights need group-wise activations"):
        fp8_linear(to_fp8(x, 1.0), row_scales(x), to_fp8(weight, 1.0), block_scales(weight), torch.empty(2, 16))
