"""RMS norm and SiLU-mul of the CPU path against their references."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.operations import CpuOperations
from kernels.operations import TorchOperations
from kernels.rms_norm import rms_norm_reference
from kernels.silu_mul import gelu_mul_reference, silu_mul_reference

from .layouts import one_row_each


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("width", [16, 576])
def test_rms_norm_equals_its_reference(rows: int, width: int) -> None:
    operations = CpuOperations(2, rows, 64)
    random = torch.Generator().manual_seed(1)
    weight = operations.vector(torch.randn(width, generator=random))
    x, out = operations.buffer(width), operations.buffer(width)
    x[:] = torch.randn(rows, width, generator=random) * 3
    operations.run(lambda: operations.rms_norm(x, weight, 1e-5, out), one_row_each(rows))
    torch.testing.assert_close(out, rms_norm_reference(x, weight, 1e-5), rtol=1e-6, atol=1e-6)


def test_silu_mul_equals_its_reference_even_where_the_exponential_ends() -> None:
    operations = CpuOperations(2, 3, 64)
    x, out = operations.buffer(64), operations.buffer(32)
    x[:] = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    x[0, :6] = torch.tensor([-200.0, -87.5, -20.0, 20.0, 87.5, 200.0])
    operations.run(lambda: operations.silu_mul(x, out), one_row_each(3))
    torch.testing.assert_close(out, silu_mul_reference(x), rtol=2e-6, atol=1e-6)


def test_gelu_mul_equals_its_reference() -> None:
    operations = CpuOperations(2, 3, 64)
    x, out = operations.buffer(64), operations.buffer(32)
    x[:] = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)) * 4
    operations.run(lambda: operations.gelu_mul(x, out), one_row_each(3))
    torch.testing.assert_close(out, gelu_mul_reference(x), rtol=2e-6, atol=2e-6)


def test_norms_of_heads_biases_and_added_norms_equal_plain_torch() -> None:
    random = torch.Generator().manual_seed(4)
    x, norms, bias = (torch.randn(*shape, generator=random) for shape in ((3, 96), (4, 16), (96,)))
    results = []
    for operations in (CpuOperations(2, 3, 64), TorchOperations(torch.device("cpu"), torch.float32, 3)):
        values, out = operations.buffer(96), operations.buffer(96)
        values[:], out[:] = x, 1.0

        def forward(
            path: CpuOperations | TorchOperations = operations, a: torch.Tensor = values, b: torch.Tensor = out
        ) -> None:
            path.add_bias(a, path.vector(bias))
            path.head_norm(a, path.vector(norms), 1e-5)
            path.rms_norm(a, path.vector(bias), 1e-5, b, add=True)

        operations.run(forward, one_row_each(3))
        results.append((values, out))
    torch.testing.assert_close(results[0], results[1], rtol=2e-6, atol=2e-6)


def test_a_nan_stays_a_nan() -> None:
    operations = CpuOperations(2, 1, 64)
    x, out = operations.buffer(64), operations.buffer(32)
    x[:] = 1.0
    x[0, 3] = float("nan")
    operations.run(lambda: operations.silu_mul(x, out), one_row_each(1))
    assert torch.isnan(out[0]).tolist() == [number == 3 for number in range(32)]
