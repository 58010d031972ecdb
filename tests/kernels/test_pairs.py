"""bfloat16 by the processor's dot product of pairs: the product of the rounded inputs, whoever rounded them."""

from __future__ import annotations

import numba
import pytest
import torch

from kernels.cpu.operations import CpuOperations
from kernels.cpu.pairs import PairMatrix, pairs_work
from kernels.linear import StoredWeight, stored
from kernels.operations import Attention, TorchOperations

from .layouts import mixed, one_row_each

REASON = pairs_work(2)
needs_pairs = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def weight(outputs: int, inputs: int, seed: int = 1) -> StoredWeight:
    return stored(torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16())


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual - expected).abs().max() <= 5e-6 * expected.abs().max()


@needs_pairs
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 15, 40, 200])
@pytest.mark.parametrize("outputs, inputs, add", [(64, 96, False), (40, 32, True)])
def test_every_number_of_rows_gives_the_product_of_the_rounded_inputs(
    rows: int, outputs: int, inputs: int, add: bool
) -> None:
    operations = CpuOperations(2, rows, 64, pairs=True)
    part = weight(outputs, inputs)
    matrix = operations.pack([part])
    assert isinstance(matrix, PairMatrix)
    random = torch.Generator().manual_seed(2)
    x, out = operations.buffer(inputs), operations.buffer(outputs)
    x[:], out[:] = torch.randn(rows, inputs, generator=random), torch.randn(rows, outputs, generator=random)
    before = out.clone() if add else torch.zeros(rows, outputs)
    operations.run(lambda: operations.linear(x, matrix, out, add), one_row_each(rows))
    assert_close(out, before + x.bfloat16().float() @ part.dequantise().float().T)


@needs_pairs
def test_parts_lie_side_by_side_and_the_head_norms_before_it_multiplies() -> None:
    operations = CpuOperations(2, 4, 64, pairs=True)
    parts = [weight(48, 64, 3), weight(24, 64, 4)]
    random = torch.Generator().manual_seed(5)
    x, norm = torch.randn(3, 64, generator=random), torch.randn(64, generator=random)
    logits = operations.logits(x, norm, 1e-5, operations.pack(parts))
    normed = torch.nn.functional.rms_norm(x, (64,), norm, 1e-5).bfloat16().float()
    assert_close(logits, normed @ torch.cat([part.dequantise().float() for part in parts]).T)


@needs_pairs
def test_what_an_operation_wrote_is_read_as_it_last_was() -> None:
    """Producers write their bfloat16 copy themselves; after another write the copy is made again."""
    shares = [(20, 1), (0, 9), (3, 2)]
    layout = mixed(shares, 8)
    wide, pairs = TorchOperations(torch.device("cpu"), torch.float32, 16), CpuOperations(2, 16, 64, pairs=True)
    results = []
    for operations in (wide, pairs):
        random = torch.Generator().manual_seed(6)
        square, up = (operations.pack([weight(rows, 64, rows)]) for rows in (64, 128))
        hidden, normed, qkv = operations.buffer(64), operations.buffer(64), operations.buffer(128)
        attended, gated = operations.buffer(64), operations.buffer(64)
        hidden[:12] = torch.randn(12, 64, generator=random)
        norm = operations.vector(torch.rand(64, generator=random))
        angles = torch.rand(64, 8, generator=random)
        caches = torch.zeros(8, 2, 16, 16), torch.zeros(8, 2, 16, 16)

        def forward(
            ops: TorchOperations | CpuOperations = operations,
            tensors: tuple[torch.Tensor, ...] = (hidden, normed, qkv, attended, gated, norm),
            matrices: tuple[object, object] = (square, up),
            caches: tuple[torch.Tensor, torch.Tensor] = caches,
            tables: tuple[torch.Tensor, torch.Tensor] = (angles.cos(), angles.sin()),
        ) -> None:
            hidden, normed, qkv, attended, gated, norm = tensors
            square, up = matrices
            how = Attention(4, 0.25)
            ops.rms_norm(hidden, norm, 1e-5, normed)
            ops.linear(normed, up, qkv)  # type: ignore[arg-type]
            ops.rotary_write(qkv, tables, caches, how)
            ops.attention(qkv, caches, how, attended)
            ops.linear(attended, square, normed)  # type: ignore[arg-type]
            ops.linear(normed, up, qkv)  # type: ignore[arg-type]
            ops.silu_mul(qkv, gated)
            ops.linear(gated, square, hidden, add=True)  # type: ignore[arg-type]

        operations.run(forward, layout)
        results.append(hidden[:12].clone())
    expected, actual = results
    assert (actual - expected).abs().max() <= 0.05 * expected.abs().max()


def test_a_processor_whose_instruction_set_is_not_allowed_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+avx2,+fma")
    assert pairs_work(1) == "the processor has no AVX-512 BF16"
