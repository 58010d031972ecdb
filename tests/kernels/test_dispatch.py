"""Which path runs, and that a path which computes something else is not taken."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.cpu import pairs
from kernels.cpu.onednn import OneDnnMatrix
from kernels.cpu.operations import CpuOperations
from kernels.cpu.pairs import PairMatrix, pairs_work
from kernels.dispatch import choose_operations, compiles_first, self_test
from kernels.linear import StoredWeight, stored
from kernels.operations import Matrix, Operations, TorchOperations

CPU = torch.device("cpu")


def chosen(width: int = 64, path: str = "auto") -> Operations:
    return choose_operations(
        CPU, torch.float32, threads=2, capacity=8, max_context=32, widths=[64, width], head_dim=16, path=path
    )


def test_the_cpu_kernels_run_where_they_agree_with_plain_torch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert isinstance(chosen(), CpuOperations)
    assert "agree with plain torch" in caplog.text


def test_plain_torch_runs_when_asked_for_or_when_the_sizes_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(chosen(path="torch"), TorchOperations)
    assert isinstance(chosen(width=24), TorchOperations)
    assert "multiples of 32" in caplog.text


class OffByABit(CpuOperations):
    """A machine whose kernels give wrong products."""

    def pack(self, parts: list[StoredWeight]) -> Matrix:  # type: ignore[override]
        return super().pack([StoredWeight(p.storage, p.shape, p.raw ^ np.uint8(64), p.dequantise) for p in parts])


def test_wrong_kernels_fall_back_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kernels.cpu.operations.CpuOperations", OffByABit)
    assert isinstance(chosen(), TorchOperations)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "plain torch runs instead" in caplog.text


def test_one_thread_computes_what_two_do() -> None:
    assert self_test(CpuOperations(1, 16, 80)) == self_test(CpuOperations(2, 16, 80))


@pytest.mark.skipif(pairs_work(2) is not None, reason=str(pairs_work(2)))
@pytest.mark.parametrize("amx, matrix", [(False, PairMatrix), (True, OneDnnMatrix)])
def test_amx_takes_bfloat16_matrices_to_onednn_and_leaves_attention_to_the_pairs(
    amx: bool, matrix: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = pairs.features() - {"amx-bf16"} | ({"amx-bf16"} if amx else set())
    monkeypatch.setattr(pairs, "features", lambda: known)
    for bfloat16, int8 in ((True, False), (False, True)):
        operations = choose_operations(
            CPU,
            torch.float32,
            threads=2,
            capacity=8,
            max_context=32,
            widths=[64],
            head_dim=16,
            bfloat16=bfloat16,
            int8=int8,
        )
        assert "bfloat16 dot products" in operations.name
        if bfloat16:
            assert isinstance(operations.pack([stored(torch.ones(32, 64).bfloat16())]), matrix)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
def test_triton_asked_for_by_name_runs_or_says_why_not() -> None:
    pytest.importorskip("triton")
    assert chosen(path="triton").name == "Triton kernels in the interpreter, float32"
    with pytest.raises(ValueError, match=r"Triton kernels cannot run: .*bfloat16"):
        choose_operations(
            CPU, torch.bfloat16, threads=1, capacity=8, max_context=32, widths=[64], head_dim=16, path="triton"
        )  # fmt: skip


def test_compiling_is_announced_only_when_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiles_first(CPU, "auto")
    assert not compiles_first(CPU, "torch")
    (tmp_path / "cpu_0123").mkdir()
    (tmp_path / "cpu_0123" / "linear.linear_f32-27.py312.nbi").touch()
    assert not compiles_first(CPU, "auto")
