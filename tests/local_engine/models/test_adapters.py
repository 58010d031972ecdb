"""LoRA adapters beside transformers with the adapter merged into its weights: several in one batch, on every path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.engine_core import EngineCore
from local_engine.errors import ConfigError, ModelError
from local_engine.messages import AddSequence
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from .test_families import FAMILIES, save_tiny

GREEDY = SamplingParams(temperature=0.0)
LLAMA_TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "Qwen2": ("Qwen2", LLAMA_TARGETS, {}),
    "every matrix": ("Qwen3", ("self_attn.k_proj", "self_attn.o_proj", "mlp.gate_proj", *LLAMA_TARGETS), {}),
    "Phi-3 with longrope": ("Phi-3 with longrope", ("self_attn.qkv_proj", "mlp.gate_up_proj"), {"use_rslora": True}),
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def save_adapter(folder: Path, model: Any, targets: tuple[str, ...], seed: int, rank: int = 4, **config: Any) -> None:
    """As PEFT saves it."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        if name.endswith(targets):
            outputs, inputs = module.weight.shape
            prefix = f"base_model.model.{name}.lora_"
            tensors[f"{prefix}A.weight"] = torch.randn(rank, inputs, generator=random) * 0.2
            tensors[f"{prefix}B.weight"] = torch.randn(outputs, rank, generator=random) * 0.2
    assert tensors
    save_file(tensors, folder / "adapter_model.safetensors")
    values = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 8,
        "target_modules": list(targets),
        "bias": "none",
        **config,
    }
    (folder / "adapter_config.json").write_text(json.dumps(values))


def merge(model: Any, folder: Path, sign: float) -> None:
    """Adds the adapter to transformers' weights (or takes it away)."""
    from safetensors.torch import load_file

    config, tensors = (
        json.loads((folder / "adapter_config.json").read_text()),
        load_file(folder / "adapter_model.safetensors"),
    )
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    for name, module in model.named_modules():
        key = f"base_model.model.{name}.lora_"
        if f"{key}A.weight" in tensors:
            module.weight.data += sign * scale * tensors[f"{key}B.weight"] @ tensors[f"{key}A.weight"]


def runner_of(folder: Path, adapters: dict[str, Path], **config: Any) -> ModelRunner:
    modules = tuple((name, str(path)) for name, path in adapters.items())
    base: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_blocks_override": 40, "enable_lora": True}
    return ModelRunner(EngineConfig(str(folder), lora_modules=modules, **{**base, **config}))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_batch_of_adapters_equals_merged_weights(case: str, kernels: str, tmp_path: Path) -> None:
    family, targets, config = CASES[case]
    model = save_tiny(tmp_path / "model", *FAMILIES[family])
    folders = {"first": tmp_path / "a", "second": tmp_path / "b"}
    for seed, folder in enumerate(folders.values()):
        save_adapter(folder, model, targets, seed, rank=4 + seed, **config)
    runner = runner_of(tmp_path / "model", folders, kernels=kernels)
    tokens = list(range(3, 75))
    names = [None, "first", "second", "first"]
    shares = [
        ScheduledSequence(
            number, tokens, 0, list(range(number * 5, number * 5 + 5)), True, GREEDY,
            adapter=runner.adapters[name].slot if name else None,
        )
        for number, name in enumerate(names)
    ]  # fmt: skip
    found = runner.logits(shares).view(len(names), len(tokens), -1)
    alone = runner.logits([shares[0]])
    torch.testing.assert_close(found[0], alone, rtol=0, atol=1e-4)
    torch.testing.assert_close(found[1], found[3], rtol=0, atol=1e-4)
    for number, name in ((0, None), (1, "first"), (2, "second")):
        if name:
            merge(model, folders[name], 1.0)
        with torch.inference_mode():
            wide, plain = (each(torch.tensor([tokens])).logits[0] for each in (deepcopy(model).double(), model))
        # A random model may sum up large numbers to small ones: float32 alone has lost 6e-5 here.
        assert (found[number] - wide).abs().max() <= 2 * (plain - wide).abs().max() + 1e-5
        if name:
            merge(model, folders[name], -1.0)


def test_rule_37_pages_are_shared_only_under_the_same_adapter(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "Qwen2", {})
    save_adapter(tmp_path / "a", model, LLAMA_TARGETS, 1)
    save_adapter(tmp_path / "b", model, LLAMA_TARGETS, 2)
    runner = runner_of(tmp_path / "model", {"one": tmp_path / "a", "same": tmp_path / "a", "other": tmp_path / "b"})
    assert runner.adapters["one"].digest == runner.adapters["same"].digest != runner.adapters["other"].digest
    core = EngineCore(EngineConfig(str(tmp_path / "model")), runner)
    prompt, cached = list(range(3, 60)), {}
    for number, adapter in enumerate(["one", "other", None, "same", "one"]):
        core.handle(AddSequence(number, prompt, SamplingParams(max_tokens=1), 0, b"", 0, None, adapter))
        while core.has_work:
            for update in core.step():
                cached[number] = update.cached_tokens
    assert cached == {0: 0, 1: 0, 2: 0, 3: 48, 4: 48}


def broken(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_rule_43_an_adapter_that_does_not_fit_says_why(tmp_path: Path) -> None:
    model = save_tiny(tmp_path / "model", "Qwen2", {})
    other = save_tiny(tmp_path / "other", "Qwen2", {"intermediate_size": 128})

    def error(name: str, **config: Any) -> str:
        with pytest.raises(ModelError) as caught:
            runner_of(tmp_path / "model", {"x": tmp_path / name}, **config)
        return str(caught.value)

    assert "has no adapter_config.json: give a folder that PEFT saved" in error("nothing")
    save_adapter(tmp_path / "wide", model, LLAMA_TARGETS, 1, rank=16)
    assert "has rank 16; raise --max-lora-rank (now 8)" in error("wide", max_lora_rank=8)
    save_adapter(tmp_path / "stranger", other, LLAMA_TARGETS, 1)
    assert "does not fit model.layers.0.mlp.up_proj: it was made for another model" in error("stranger")
    save_adapter(tmp_path / "dora", model, LLAMA_TARGETS, 1)
    broken(tmp_path / "dora", use_dora=True)
    assert "sets use_dora, which is not supported: train it without, or merge it" in error("dora")
    save_adapter(tmp_path / "cut", model, LLAMA_TARGETS, 1)
    weights = tmp_path / "cut" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "is truncated or corrupt" in error("cut")
    save_adapter(tmp_path / "head", model, ("lm_head",), 1)
    assert "only matrices of layers are" in error("head")


def test_flags_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="--lora-modules needs --enable-lora"):
        EngineConfig("m", lora_modules=(("a", "b"),))
    with pytest.raises(ConfigError, match="names an adapter twice"):
        EngineConfig("m", enable_lora=True, lora_modules=(("a", "b"), ("a", "c")))
