"""The folder that a quantised model is written to: what this engine and others that read safetensors load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kernels.quantised_weight import to_fp8_rows, to_int8

from ..errors import ConfigError
from ..models.config import ModelConfig
from ..tokenizer import Tokenizer, load_tokenizer
from .awq import to_awq
from .model import Model

WEIGHTS = "model.safetensors"
OF_GGUF = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
}
"""GGUF's name of an architecture without experts: config.json's, and its `model_type`."""
Tensors = dict[str, torch.Tensor]


def awq_tensors(weight: torch.Tensor, group: int) -> Tensors:
    packed = to_awq(weight, group)
    assert packed.zeros is not None
    return {"qweight": packed.values, "qzeros": packed.zeros, "scales": packed.scales}


def int8_tensors(weight: torch.Tensor) -> Tensors:
    rounded = to_int8(weight)
    return {"weight": rounded.values, "weight_scale": rounded.scales.half()[:, None]}


def fp8_tensors(weight: torch.Tensor) -> Tensors:
    rounded = to_fp8_rows(weight)
    return {"weight": rounded.values, "weight_scale": rounded.scales[:, None]}


def awq_config(group: int) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}


def compressed_config(kind: str) -> dict[str, Any]:
    """int8 or fp8 as compressed-tensors has it; engines that can also round activations, token by token, do."""
    value = {"num_bits": 8, "type": "int" if kind == "int8" else "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**value, "strategy": "channel", "dynamic": False},
        "input_activations": {**value, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if kind == "int8" else "float-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def write_checkpoint(
    model: Model,
    quantise: Callable[[torch.Tensor], Tensors],
    quantization_config: dict[str, Any],
    source: Path,
    config: ModelConfig,
    output: Path,
) -> None:
    """`output` must be empty or not there. What is not quantised is kept in float16, vectors too."""
    refuse_full(output)
    values = _config_of_folder(source) if source.is_dir() else _config_of_gguf(source, config, model)
    output.mkdir(parents=True, exist_ok=True)
    tensors: Tensors = {}
    for name, matrix in model.matrices.items():
        if name in model.linears:
            tensors |= {f"{name}.{last}": tensor.contiguous() for last, tensor in quantise(matrix).items()}
        else:
            tensors[f"{name}.weight"] = matrix.half()
    for name, vector in model.vectors.items():
        tensors[name if name.endswith(".bias") else f"{name}.weight"] = vector.half()
    if source.is_dir():
        _copy_what_is_beside(source, output)
    else:
        _write_tokenizer(load_tokenizer(source), output)
    values |= {"quantization_config": quantization_config, "torch_dtype": "float16", "dtype": "float16"}
    (output / "config.json").write_text(json.dumps(values, indent=2), encoding="utf-8")
    save_file(tensors, output / WEIGHTS, metadata={"format": "pt"})


def refuse_full(output: Path) -> None:
    """Raises `ConfigError`."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output} exists and is not an empty folder: name another one")


def _config_of_folder(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return values


def _copy_what_is_beside(folder: Path, output: Path) -> None:
    """Everything but weights."""
    for path in folder.iterdir():
        if path.is_file() and path.suffix not in (".safetensors", ".bin", ".gguf") and "index.json" not in path.name:
            shutil.copy(path, output / path.name)


def _config_of_gguf(source: Path, config: ModelConfig, model: Model) -> dict[str, Any]:
    """With every value that transformers would otherwise take from its own defaults. Raises `ConfigError` for an architecture
    that only GGUF has."""
    if config.architecture not in OF_GGUF:
        raise ConfigError(
            f"a GGUF of architecture {config.architecture!r} cannot be written as a folder (those of {', '.join(OF_GGUF)} "
            "can): quantise the model's safetensors folder instead"
        )
    own = {name: value for name, value in config.own.items() if value is not None}
    architecture, model_type = OF_GGUF[config.architecture]
    if config.architecture == "llama" and "sliding_window" in own:
        architecture, model_type = "MistralForCausalLM", "mistral"
    rope = dict(config.rope)
    outside: dict[str, Any] = {name: rope.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    if "original_max_position_embeddings" in rope:
        outside["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    tokenizer = load_tokenizer(source)
    special = tokenizer.special
    named = {"bos": special.bos, "eos": special.eos, "pad": special.extra.get("pad_token")}
    biased = {name.split(".")[-3] for name in model.vectors if name.endswith(".bias")}
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        **outside,
        "rope_scaling": rope or None,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": "self_attn" in biased,
        "mlp_bias": "mlp" in biased,
        **({} if "hidden_activation" in own else {"hidden_act": "silu"}),
        **{f"{name}_token_id": tokenizer.special_id(token) if token else None for name, token in named.items()},
        **own,
    }


def _write_tokenizer(tokenizer: Tokenizer, output: Path) -> None:
    tokenizer.save(output / "tokenizer.json")
    special = tokenizer.special
    named = {"bos_token": special.bos, "eos_token": special.eos, "chat_template": tokenizer.chat_template}
    settings = {name: value for name, value in {**named, **special.extra}.items() if value is not None}
    (output / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (output / "generation_config.json").write_text(
        json.dumps({"eos_token_id": list(special.eos_ids)}), encoding="utf-8"
    )
