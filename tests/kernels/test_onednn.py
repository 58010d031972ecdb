"""The oneDNN linears: their place in a program, and that they are tried before they are trusted."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.onednn import OneDnnMatrix, bfloat16_works
from kernels.cpu.operations import CpuOperations
from kernels.dispatch import TOLERANCE, self_test


def test_a_layer_whose_matrices_are_onednns_computes_what_plain_torch_computes() -> None:
    """In float32, which every processor has: the bfloat16 packing goes through the same calls."""
    operations = CpuOperations(2, 16, 80, packed_float=torch.float32)
    assert self_test(operations) <= TOLERANCE


def test_bfloat16_is_used_exactly_where_it_agrees_with_plain_torch() -> None:
    reason = bfloat16_works()
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert reason is None
    else:
        assert reason == "the processor has no bfloat16 arithmetic"


def test_wrong_products_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)

    def wrong(self: OneDnnMatrix, x: torch.Tensor, out: torch.Tensor, add: bool) -> None:
        out.fill_(1.0)

    monkeypatch.setattr(OneDnnMatrix, "__init__", lambda self, parts, dtype: None)
    monkeypatch.setattr(OneDnnMatrix, "apply", wrong)
    assert "differ from plain torch" in str(bfloat16_works())


def test_a_torch_without_the_operations_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> bool:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_is_mkldnn_bf16_supported'")

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", missing)
    assert "does not offer them" in str(bfloat16_works())
