"""Packed weights compute what the dequantised matrix computes, for every storage and every shape of tile."""

from __future__ import annotations

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from kernels.cpu.operations import CpuOperations
from kernels.linear import StoredWeight, pack, packs, stored

from .layouts import one_row_each

FLOATS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def weight(storage: str, outputs: int, inputs: int, seed: int = 1) -> StoredWeight:
    values = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))
    if storage in FLOATS:
        return stored(values.to(FLOATS[storage]))
    kind = GGMLQuantizationType[storage.upper()]
    raw = quantize(values.numpy(), kind)
    return StoredWeight(storage, (outputs, inputs), raw, lambda: torch.from_numpy(dequantize(raw, kind)))


def product(parts: list[StoredWeight], x: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    """x Wᵀ (+ before) through the CPU kernels."""
    rows = x.shape[0]
    operations = CpuOperations(2, max(rows, 1), 64)
    matrix = operations.pack(parts)
    inputs, out = operations.buffer(x.shape[1]), operations.buffer(matrix.outputs)
    inputs[:rows] = x
    out[:rows] = 0 if before is None else before

    operations.run(lambda: operations.linear(inputs, matrix, out, add=before is not None), one_row_each(rows))
    return out[:rows].clone()


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual - expected).abs().max() <= 3e-6 * expected.abs().max()


@pytest.mark.parametrize("storage", ["f32", "bf16", "f16", "q8_0", "q4_1", "q4_0"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13, 40])
def test_every_storage_and_number_of_rows_gives_the_dequantised_product(storage: str, rows: int) -> None:
    part = weight(storage, 48, 96)
    x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(2))
    assert_close(product([part], x), x @ part.dequantise().float().T)


@pytest.mark.parametrize("storage", ["f32", "q4_1"])
def test_inputs_beyond_one_scratch_are_summed_over_its_refills(storage: str) -> None:
    part = weight(storage, 16, 32 * 70)
    x = torch.randn(9, 32 * 70, generator=torch.Generator().manual_seed(3))
    assert_close(product([part], x), x @ part.dequantise().float().T)


@pytest.mark.parametrize("rows", [1, 8])
def test_add_adds_to_what_was_there(rows: int) -> None:
    part = weight("q4_1", 32, 64)
    random = torch.Generator().manual_seed(4)
    x, before = torch.randn(rows, 64, generator=random), torch.randn(rows, 32, generator=random)
    assert_close(product([part], x, before), before + x @ part.dequantise().float().T)


def test_parts_of_different_storage_lie_side_by_side() -> None:
    parts = [weight("q4_1", 32, 64, 5), weight("q8_0", 16, 64, 6), weight("f32", 16, 64, 7)]
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(8))
    assert_close(product(parts, x), x @ torch.cat([part.dequantise().float() for part in parts]).T)


def test_outputs_that_fill_no_whole_panel_are_padded() -> None:
    part = weight("q8_0", 40, 32)
    x = torch.randn(2, 32, generator=torch.Generator().manual_seed(9))
    assert_close(product([part], x), x @ part.dequantise().float().T)
    assert pack([part]).data.shape == (3, 1, 16 * 34)


def test_weights_that_cannot_be_packed_are_known_beforehand() -> None:
    assert packs("q4_1", 576)
    assert not packs("q4_1", 48)
    assert not packs("q6_k", 512)
