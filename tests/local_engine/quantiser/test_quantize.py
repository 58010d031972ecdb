"""`engine quantize`: what is written loads back equal, and searched scales lose less than plain rounding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaForCausalLM

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.errors import ConfigError
from local_engine.models.config import read_folder_config
from local_engine.quantiser.awq import common_group, record_inputs, scale_for_awq, search_scales, to_awq
from local_engine.quantiser.cli import quantize
from local_engine.quantiser.model import Model, read_model
from local_engine.quantiser.write import (
    awq_config,
    awq_tensors,
    compressed_config,
    fp8_tensors,
    int8_tensors,
    write_checkpoint,
)
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams
from local_engine.weights.source import open_weights

from ..models.tiny_llama import save_tiny_llama

IDS = torch.randint(0, 99, (48,), generator=torch.Generator().manual_seed(4)).tolist()
CONFIGS = {"awq": awq_config(32), "int8": compressed_config("int8"), "fp8": compressed_config("fp8")}
WRITERS = {"awq": lambda weight: awq_tensors(weight, 32), "int8": int8_tensors, "fp8": fp8_tensors}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With biases and a channel of each norm that is far larger than the others, as real models have them."""
    path = tmp_path / "plain"
    model = save_tiny_llama(path, attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[5] = layer.post_attention_layernorm.weight[9] = 30.0
    model.save_pretrained(path)
    return path


def written(folder: Path, how: str, model: Model) -> Path:
    output = folder.parent / how
    write_checkpoint(model, WRITERS[how], CONFIGS[how], folder, read_folder_config(folder), output)
    return output


def runner_of(folder: Path) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            str(folder), device="cpu", dtype="float32", num_blocks_override=8, max_num_batched_tokens=64, cpu_threads=1
        )
    )


@pytest.mark.parametrize("how", WRITERS)
def test_what_is_written_loads_back_equal(how: str, folder: Path) -> None:
    model = read_model(open_weights(folder))
    source = open_weights(written(folder, how, model))
    for name in model.linears:
        wanted = {
            "awq": lambda weight: to_awq(weight, 32).dequantise(),
            "int8": lambda weight: int8_values(weight),
            "fp8": lambda weight: fp8_values(weight),
        }[how](model.matrices[name])
        assert torch.equal(source.matrix(f"{name}.weight").dequantise(), wanted), name
    assert torch.equal(source.matrix("lm_head.weight").dequantise().float(), model.matrices["lm_head"].half().float())
    assert source.stored_as == ("awq" if how == "awq" else "compressed-tensors")


def int8_values(weight: torch.Tensor) -> torch.Tensor:
    tensors = int8_tensors(weight)
    return tensors["weight"].float() * tensors["weight_scale"].float()


def fp8_values(weight: torch.Tensor) -> torch.Tensor:
    tensors = fp8_tensors(weight)
    return tensors["weight"].float() * tensors["weight_scale"].float()


def test_scaling_for_awq_does_not_change_what_the_model_computes(folder: Path) -> None:
    source = open_weights(folder)
    model = read_model(source)
    before = {name: matrix.clone() for name, matrix in model.matrices.items()}
    scale_for_awq(model, record_inputs(source, IDS, 1), 32, lambda words: None)
    changed = [name for name in model.linears if not torch.equal(model.matrices[name], before[name])]
    assert any("q_proj" in name for name in changed) and any("up_proj" in name for name in changed)
    scaled = LlamaForCausalLM.from_pretrained(folder).eval()
    state = {f"{name}.weight": matrix for name, matrix in model.matrices.items()}
    state |= {name if name.endswith(".bias") else f"{name}.weight": vector for name, vector in model.vectors.items()}
    assert scaled.load_state_dict(state).missing_keys == []
    with torch.inference_mode():
        logits = scaled(torch.tensor([IDS])).logits
        wanted = LlamaForCausalLM.from_pretrained(folder).eval()(torch.tensor([IDS])).logits
    torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=1e-3)


def test_searched_scales_keep_the_logits_closer_than_plain_rounding(folder: Path) -> None:
    source = open_weights(folder)
    plain, searched = read_model(source), read_model(source)
    scale_for_awq(searched, record_inputs(source, IDS, 1), 32, lambda words: None)
    own, lost = logits_of(folder), {}
    for name, model in (("plain", plain), ("searched", searched)):
        output = folder.parent / f"awq {name}"
        write_checkpoint(model, WRITERS["awq"], CONFIGS["awq"], folder, read_folder_config(folder), output)
        lost[name] = float((logits_of(output) - own).norm() / own.norm())
    print(lost)
    assert lost["searched"] < lost["plain"]


def logits_of(folder: Path) -> torch.Tensor:
    whole = ScheduledSequence(0, IDS, 0, [0, 1, 2], samples=True, params=SamplingParams())
    return runner_of(folder).logits([whole])


def test_a_search_never_does_worse_than_plain_rounding_on_its_own_text() -> None:
    random = torch.Generator().manual_seed(3)
    for spread in (0.1, 1.0, 10.0):
        weight = torch.randn(16, 64, generator=random)
        x = torch.randn(40, 64, generator=random) * (torch.randn(64, generator=random) * spread).exp()
        scales = search_scales(weight, x, 32)

        def error(scales: torch.Tensor, weight: torch.Tensor = weight, x: torch.Tensor = x) -> float:
            return float((x @ (to_awq(weight * scales, 32).dequantise() / scales - weight).T).square().mean())

        assert error(scales) <= error(torch.ones(64)) * (1 + 1e-5)


def test_the_files_beside_the_weights_come_along_and_say_what_they_are(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    output = written(folder, "awq", read_model(open_weights(folder)))
    assert (output / "tokenizer.json").read_text() == "{}"
    config = json.loads((output / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "awq" and config["architectures"] == ["LlamaForCausalLM"]
    with safe_open(output / "model.safetensors", framework="pt") as file:
        assert file.get_tensor("model.layers.0.self_attn.q_proj.qweight").shape == (64, 8)
        assert file.metadata() == {"format": "pt"}


def test_what_cannot_be_quantised_is_refused_with_the_reason(folder: Path) -> None:
    model = read_model(open_weights(folder))
    assert common_group(model, None) == 32
    with pytest.raises(ConfigError, match=r"no group of 128 inputs divides every matrix .*96 x 64"):
        common_group(model, 128)
    output = written(folder, "int8", model)
    with pytest.raises(ConfigError, match="these weights are compressed-tensors int8 already"):
        read_model(open_weights(output))
    with pytest.raises(ConfigError, match="exists and is not an empty folder"):
        written(folder, "int8", model)


def test_a_calibration_text_that_is_not_there_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing, output = folder / "none.txt", folder.parent / "out"
    argv = [str(folder), "--awq", "--output", str(output), "--calibration", str(missing)]
    assert quantize(argv) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"local_engine: error: --calibration {missing}: ") and said.count("\n") == 1
