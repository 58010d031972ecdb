"""`python -m bench.gpu`, as far as it runs without a GPU: its checks in the interpreter, its random model on plain torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import gpu
from bench.gpu_checks import Verdict, check_all
from bench.gpu_engine import FORMS, weight_bytes
from bench.gpu_model import FORMS as ENGINE_FORMS
from bench.gpu_setting import LLAMA_8B, dry

ROOT = Path(__file__).resolve().parents[3]
ABSENT = ("msgspec", "gguf", "tokenizers", "transformers", "llguidance", "numba", "granian")
CPU = torch.device("cpu")


def test_all_its_checks_hold_in_the_interpreter() -> None:
    verdicts = check_all(CPU, torch.float32, 64)
    assert [each for each in verdicts if not each.right] == []
    assert len({each.kernel for each in verdicts}) == len(verdicts) == 28


def test_a_value_that_was_never_written_is_wrong() -> None:
    assert not Verdict("k", float("nan"), 1.0).right


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench.gpu"])
    assert gpu.main() == 1
    assert "needs a CUDA device" in capsys.readouterr().err


def test_every_line_of_its_measurement_runs_dry(capsys: pytest.CaptureFixture[str]) -> None:
    report = gpu.measure(dry(), [Verdict("k", 0.0, 1.0)])
    assert {"measured", "attention", "products", "engine", "transformers", "took_s"} <= report.keys()
    assert set(report["engine"]) == {
        "weights", "context", *(f"{weights} weights, {cache} cache" for weights, cache in FORMS)
    }  # fmt: skip
    one = report["engine"]["int4 weights, full cache"]["2 sequences"]
    assert set(one) == {"eager", "graphs", "graphs, launched ahead"}
    assert all(figures["step_ms"] > 0 for figures in one.values())
    gpu.tune(dry())
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("[")[0] for row in rows] == ["ATTENTION_DECODE", "ATTENTION_PREFILL", "MATMUL", "MATMUL"]


def test_its_command_runs_dry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench.gpu", "--dry-run", "--checks"])
    monkeypatch.setattr(gpu, "check_all", lambda device, dtype, width: [Verdict("k", 0.0, 1.0)])
    assert gpu.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "right  k: 0.00e+00, allowed 1.00e+00"
    assert said[1:] == [f"right  engine, {name}: 0.00e+00, allowed 0.00e+00" for name, _ in ENGINE_FORMS]


def test_it_needs_nothing_that_a_bare_gpu_machine_lacks() -> None:
    """The runner, the kernels and the bench import torch, triton, numpy and safetensors, and nothing else that is installed."""
    code = (
        "import sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {ABSENT!r}: raise ImportError(name + ' is not there')\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "import bench.gpu, local_engine.runner\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_step_reads_the_bytes_of_its_weights() -> None:
    """Of Llama-3.1-8B all but the embedding: 7,504,658,432 parameters in matrices."""
    assert weight_bytes(LLAMA_8B, "full", 128, 2) == 2 * 7_504_658_432
    assert weight_bytes(LLAMA_8B, "fp8", 128, 2) == 7_504_658_432 + 128_256 * 4096
