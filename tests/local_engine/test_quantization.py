"""--quantization on SmolLM2: what rounding its weights costs on a short text that is shipped. Figures are printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from local_engine.config import EngineConfig
from local_engine.quantiser.perplexity import EVALUATION, perplexity, text
from local_engine.runner import ModelRunner
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.model_store import resolve_model

from .models.tiny_llama import save_tiny_llama

NAME = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def runner_of(model: str, quantization: str | None, kernels: str = "auto") -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model, device="cpu", dtype="float32", quantization=quantization, kernels=kernels, num_blocks_override=32,
            max_num_batched_tokens=512,
        )
    )  # fmt: skip


def measured(quantization: str | None) -> float:
    ids = load_tokenizer(resolve_model(NAME)).encode(text(EVALUATION))
    return perplexity(runner_of(NAME, quantization), ids)


@pytest.fixture(scope="module")
def own() -> float:
    """Of the file's own weights, in float32 arithmetic."""
    before = torch.get_num_threads()
    value = measured(None)
    torch.set_num_threads(before)
    return value


@pytest.mark.parametrize("quantization, most", [("int8", 0.01), ("int4", 0.01)])
def test_rounding_costs_at_most_a_hundredth_of_the_perplexity(own: float, quantization: str, most: float) -> None:
    value = measured(quantization)
    print(
        f"\n{quantization}: perplexity {value:.4f} beside {own:.4f} of the file's own weights ({value / own - 1:+.3%})"
    )
    assert abs(value / own - 1) <= most


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
@pytest.mark.parametrize("quantization, held", [("int8", "q8_0"), ("int4-g64", "q4_1"), ("fp8", "f32")])
def test_the_cpu_computes_with_the_rounded_values_whatever_the_path(
    quantization: str, held: str, tmp_path: Path
) -> None:
    save_tiny_llama(tmp_path)
    ids = [5, 17, 3, 44, 8, 61, 2]
    plain = runner_of(str(tmp_path), quantization, kernels="torch")
    packed = runner_of(str(tmp_path), quantization)
    assert f"weights float32 rounded to {quantization} held as f" in packed.precision and held in packed.precision
    assert perplexity(packed, ids) == pytest.approx(perplexity(plain, ids), rel=1e-4)
    assert perplexity(plain, ids) != pytest.approx(perplexity(runner_of(str(tmp_path), None), ids), rel=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
def test_tritons_kernels_compute_with_the_same_rounded_values(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    save_tiny_llama(tmp_path, num_hidden_layers=1)
    ids = [5, 17, 3, 44]
    packed = runner_of(str(tmp_path), "int4", kernels="triton")
    assert "int4" in packed.precision.split("held as")[1]
    assert perplexity(packed, ids) == pytest.approx(perplexity(runner_of(str(tmp_path), "int4"), ids), rel=1e-3)
