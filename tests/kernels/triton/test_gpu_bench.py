"""`python -m bench.gpu`, as far as it runs without a GPU: its checks in the interpreter, its random model on plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench import gpu
from bench.gpu_checks import Verdict, check_all, step
from kernels.operations import TorchOperations
from local_engine.kv_cache import allocate
from local_engine.models.decoder import Decoder
from local_engine.models.family import Family

CPU = torch.device("cpu")


def test_all_its_checks_hold_in_the_interpreter() -> None:
    verdicts = check_all(CPU, torch.float32, 64)
    assert [each for each in verdicts if not each.right] == []
    assert len({each.kernel for each in verdicts}) == len(verdicts) == 22


def test_a_value_that_was_never_written_is_wrong() -> None:
    assert not Verdict("k", float("nan"), 1.0).right


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench.gpu"])
    assert gpu.main() == 1
    assert "needs a CUDA device" in capsys.readouterr().err


def test_its_random_model_computes_a_step_of_every_sequence() -> None:
    config = replace(
        gpu.LLAMA_8B, vocab_size=50, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2, head_dim=16,
        max_position_embeddings=64,
    )  # fmt: skip
    model = Decoder(
        gpu.RandomWeights(config, CPU), Family(), TorchOperations(CPU, torch.float32, 8),
        max_context=64, device=CPU, threads=1, progress=lambda text: None,
    )  # fmt: skip
    model.attach(allocate(config, 4, torch.float32, CPU))
    model.compute(torch.tensor([3, 49]), step([(20, 1), (0, 1)], CPU))
    logits = model.logits(torch.arange(2))
    assert logits.shape == (2, 50) and bool(torch.isfinite(logits).all())
