"""Weights in 8 and 4 bits with activations rounded to 16: exactly the product of what was rounded, for any number of rows."""

from __future__ import annotations

import numba
import pytest
import torch

from kernels.cpu.int8_weights import ByteMatrix, int8_works
from kernels.cpu.operations import CpuOperations
from kernels.cpu.panels import PanelMatrix
from kernels.linear import StoredWeight

from .layouts import one_row_each
from .test_linear import weight

REASON = int8_works(2)
needs_bytes = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x by groups of 32 on the grid of 32,512 steps to each group's largest magnitude."""
    groups = x.view(x.shape[0], -1, 32)
    largest = groups.abs().amax(dim=-1, keepdim=True)
    steps = (groups * (32512 / torch.where(largest > 0, largest, 1.0))).round()
    return (steps * (largest / 32512)).view(x.shape)


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


WRONG = (float("nan"), float("inf"), -float("inf"))


@needs_bytes
@pytest.mark.parametrize("storage", ["q8_0", "q4_1", "q4_0"])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("value", WRONG)
def test_rule_39_a_nan_and_an_infinity_spoil_their_own_row_alone(storage: str, add: bool, value: float) -> None:
    part = weight(storage, 64, 96)
    random = torch.Generator().manual_seed(4)
    x = torch.randn(7, 96, generator=random)
    before = torch.randn(7, 64, generator=random) if add else None
    clean = product([part], x, before)
    for row in range(7):
        spoilt = x.clone()
        spoilt[row, 40] = value
        y = product([part], spoilt, before)
        others = [other for other in range(7) if other != row]
        assert torch.equal(y[others], clean[others])
        assert not torch.isfinite(y[row]).any()


@needs_bytes
@pytest.mark.parametrize("storage", ["q8_0", "q4_1", "q4_0"])
def test_inputs_of_any_magnitude_are_rounded_by_their_own_groups(storage: str) -> None:
    """Zeros stay zero; what is a power of two larger or smaller gives the same, so much larger or smaller."""
    part = weight(storage, 64, 96)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(5))
    y = product([part], x)
    for power in (-80, -20, 20, 80, 110):
        assert torch.equal(product([part], x * 2.0**power), y * 2.0**power)
    mixed = x.clone()
    mixed[0], mixed[1, :32], mixed[2] = 0.0, x[1, :32] * 2.0**100, -0.0
    z = product([part], mixed)
    assert torch.equal(z[0], torch.zeros(64)) and torch.equal(z[2], torch.zeros(64))
    assert torch.isfinite(z).all()
    assert torch.equal(z[3:], y[3:])
    assert torch.isfinite(product([part], torch.full((1, 96), 1e-38))).all()


def test_a_processor_whose_instruction_set_is_not_allowed_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+avx2,+fma")
    assert int8_works(1) == "the processor has no AVX-512 VNNI"
