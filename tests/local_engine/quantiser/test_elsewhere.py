"""What `engine quantize` writes, as others read it: transformers by way of the compressed-tensors library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from local_engine.batch import ScheduledSequence
from local_engine.errors import ConfigError
from local_engine.models.config import read_folder_config
from local_engine.models.family import Family
from local_engine.models.registry import GGUF_ARCHITECTURES
from local_engine.quantiser.model import Model, read_model
from local_engine.quantiser.write import OF_GGUF, compressed_config, fp8_tensors, int8_tensors, write_checkpoint
from local_engine.sampling_params import SamplingParams
from local_engine.tokenizer import load_tokenizer
from local_engine.weights.source import open_weights

from ..models.llama_cpp import plain_vocabulary, write_gguf
from ..models.test_families import FAMILIES, save_tiny
from ..models.test_gguf_families import STORED
from .test_quantize import IDS, runner_of

MIXTURES, UNWRITTEN = ("Mixtral", "Qwen3Moe"), ("Llama 3.1",)
WRITERS = {"int8": int8_tensors, "fp8": fp8_tensors}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write(how: str, folder: Path) -> Path:
    output = folder.parent / how
    model = read_model(open_weights(folder))
    write_checkpoint(model, WRITERS[how], compressed_config(how), folder, read_folder_config(folder), output)
    return output


def logits_here(folder: Path) -> torch.Tensor:
    whole = ScheduledSequence(0, IDS, 0, [0, 1, 2], samples=True, params=SamplingParams())
    return runner_of(folder).logits([whole])


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Phi-3", "Gemma 3"])
def test_the_compressed_tensors_library_reads_the_values_that_were_meant(how: str, family: str, tmp_path: Path) -> None:
    """Logits differ by the rounding of activations, which the file allows and this engine leaves out; without it they do not."""
    save_tiny(tmp_path / "plain", *FAMILIES.get(family, ("Llama", {"attention_bias": True})))
    output = write(how, tmp_path / "plain")
    model, wanted = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32).eval(), logits_here(output)
    with torch.inference_mode():
        rounded = model(torch.tensor([IDS])).logits[0]
        for module in model.modules():
            if (scheme := getattr(module, "quantization_scheme", None)) is not None:
                scheme.input_activations = None
        logits = model(torch.tensor([IDS])).logits[0]
    torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4)
    assert 0 < float((rounded - wanted).norm() / wanted.norm()) < 0.3
    source, seen = open_weights(output), 0
    for name, module in model.named_modules():
        if ".layers." in name and isinstance(module, torch.nn.Linear):
            seen += 1
            assert torch.equal(module.weight, source.matrix(f"{name}.weight").dequantise().float()), name
    assert seen == len(read_model(open_weights(tmp_path / "plain")).linears)


@pytest.mark.parametrize(
    "name", [name for name, (family, _) in STORED.items() if family not in MIXTURES and name not in UNWRITTEN]
)
def test_a_gguf_written_as_a_folder_is_that_model_for_transformers(name: str, tmp_path: Path) -> None:
    """Its config.json says everything that the header said: rotations, windows, caps, scales."""
    save_tiny(tmp_path / "plain", *STORED[name])
    path, output = write_gguf(tmp_path / "plain", vocabulary=plain_vocabulary), tmp_path / "out"
    source = open_weights(path)
    write_checkpoint(read_model(source), fp8_tensors, compressed_config("fp8"), path, source.config, output)
    model = AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32).eval()
    for module in model.modules():
        if (scheme := getattr(module, "quantization_scheme", None)) is not None:
            scheme.input_activations = None
    with torch.inference_mode():
        logits = model(torch.tensor([[*IDS, *([0] * 20)]])).logits[
            0, : len(IDS)
        ]  # beyond what longrope takes for short
    torch.testing.assert_close(logits, logits_here(output), rtol=0, atol=2e-4)
    assert load_tokenizer(output).special.eos_ids == (2,)


def test_a_gguf_that_cannot_be_written_as_a_folder_says_why(tmp_path: Path) -> None:
    save_tiny(tmp_path, *STORED["Mixtral"])
    with pytest.raises(ConfigError, match="models with experts cannot be quantised yet"):
        read_model(open_weights(write_gguf(tmp_path)))
    save_tiny(tmp_path, *STORED["Llama 3.1"])
    with pytest.raises(ConfigError, match="brings its own rotary factors: quantise the model's safetensors folder"):
        read_model(open_weights(write_gguf(tmp_path)))
    config = replace(read_folder_config(tmp_path), architecture="qwen3moe")
    with pytest.raises(ConfigError, match="a GGUF of architecture 'qwen3moe' cannot be written as a folder"):
        write_checkpoint(Model(Family(), 0), fp8_tensors, {}, tmp_path / "m.gguf", config, tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing is left behind"


def test_every_dense_architecture_of_gguf_can_be_written() -> None:
    assert set(GGUF_ARCHITECTURES) - set(OF_GGUF) == {"qwen3moe"}
