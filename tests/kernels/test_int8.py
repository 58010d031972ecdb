"""Weights in 8 and 4 bits with activations rounded to 8: exactly the product of what was rounded, for any number of rows."""

from __future__ import annotations

import numba
import pytest
import torch

from kernels.cpu.int8_weights import ByteMatrix, int8_works
from kernels.cpu.operations import CpuOperations, PanelMatrix
from kernels.linear import StoredWeight

from .layouts import one_row_each
from .test_linear import weight

REASON = int8_works(2)
needs_bytes = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x by groups of 32 on the grid of 127 steps to each group's largest magnitude."""
    groups = x.view(x.shape[0], -1, 32)
    largest = groups.abs().amax(dim=-1, keepdim=True)
    steps = (groups * (127 / torch.where(largest > 0, largest, 1.0))).round()
    return (steps * (largest / 127)).view(x.shape)


def product(parts: list[StoredWeight], x: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    rows = x.shape[0]
    operations = CpuOperations(2, rows, 64, int8=True)
    matrix = operations.pack(parts)
    inputs, out = operations.buffer(x.shape[1]), operations.buffer(matrix.outputs)
    inputs[:], out[:] = x, 0 if before is None else before
    operations.run(lambda: operations.linear(inputs, matrix, out, add=before is not None), one_row_each(rows))
    return out.clone()


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual - expected).abs().max() <= 5e-6 * expected.abs().max()


@needs_bytes
@pytest.mark.parametrize("storage", ["q8_0", "q4_1", "q4_0"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 40, 150])
@pytest.mark.parametrize("add", [False, True])
def test_every_storage_and_number_of_rows_gives_the_product_of_the_rounded_inputs(
    storage: str, rows: int, add: bool
) -> None:
    part = weight(storage, 64, 96)
    random = torch.Generator().manual_seed(2)
    x = torch.randn(rows, 96, generator=random)
    before = torch.randn(rows, 64, generator=random) if add else None
    expected = rounded(x) @ part.dequantise().float().T
    assert_close(product([part], x, before), expected if before is None else expected + before)


@needs_bytes
@pytest.mark.parametrize("storage", ["q8_0", "q4_1", "q4_0"])
def test_a_row_computes_the_same_bits_alone_and_among_others(storage: str) -> None:
    part = weight(storage, 64, 128)
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(3))
    together = product([part], x)
    for row in range(9):
        assert torch.equal(product([part], x[row : row + 1])[0], together[row])


@needs_bytes
def test_parts_of_other_storage_and_rows_that_fill_no_panel_lie_side_by_side() -> None:
    parts = [weight("q4_1", 32, 64, 5), weight("q8_0", 16, 64, 6), weight("f32", 16, 64, 7), weight("q8_0", 64, 64, 8)]
    matrix = CpuOperations(2, 1, 64, int8=True).pack(parts)
    assert isinstance(matrix, PanelMatrix)
    assert [isinstance(run, ByteMatrix) for run in matrix.runs] == [True, False, False, True]
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(8))
    wide = torch.cat([part.dequantise().float() for part in parts])
    expected = x @ wide.T
    for first, end in ((0, 32), (64, 128)):
        expected[:, first:end] = rounded(x) @ wide[first:end].T
    assert_close(product(parts, x), expected)


@needs_bytes
def test_rule_39_a_nan_and_an_infinity_spoil_their_own_row_and_zeros_stay_zero() -> None:
    part = weight("q4_1", 32, 64)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(4))
    x[1, 40], x[2, 3], x[3] = float("nan"), float("inf"), 0.0
    y = product([part], x)
    assert torch.isfinite(y[0]).all()
    assert torch.isnan(y[1]).all()
    assert not torch.isfinite(y[2]).any()
    assert torch.equal(y[3], torch.zeros(32))


def test_a_processor_whose_instruction_set_is_not_allowed_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+avx2,+fma")
    assert int8_works(1) == "the processor has no AVX-512 VNNI"
