"""Writes a model that transformers saved as llama.cpp's converter would: names (by the gguf package's table), keys, row orders.

After https://github.com/ggml-org/llama.cpp, conversion/.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter, get_tensor_name_map
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, RopeScalingType
from gguf.quants import quantize
from safetensors.torch import load_file

ARCHITECTURES = {
    "LlamaForCausalLM": MODEL_ARCH.LLAMA,
    "MistralForCausalLM": MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": MODEL_ARCH.LLAMA,
    "Qwen2ForCausalLM": MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": MODEL_ARCH.QWEN3,
    "Qwen3MoeForCausalLM": MODEL_ARCH.QWEN3MOE,
    "Gemma2ForCausalLM": MODEL_ARCH.GEMMA2,
    "Gemma3ForCausalLM": MODEL_ARCH.GEMMA3,
    "Phi3ForCausalLM": MODEL_ARCH.PHI3,
}
_EXPERT = re.compile(r"(model\.layers\.\d+\.(?:mlp|block_sparse_moe))\.experts\.(\d+)\.(\w+)\.weight")


def write_gguf(
    folder: Path, *, quantised: str | None = None, vocabulary: Callable[[GGUFWriter], None] | None = None
) -> Path:
    """`quantised`: the storage type of the layers' matrices, otherwise float32. `vocabulary` adds a tokenizer."""
    values = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[values["architectures"][0]]
    path = folder / "model.gguf"
    writer = GGUFWriter(str(path), MODEL_ARCH_NAMES[architecture])
    rope = values.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    _add_keys(writer, architecture, values, rope)
    if vocabulary is not None:
        vocabulary(writer)
    names = get_tensor_name_map(architecture, values["num_hidden_layers"])
    for name, tensor in _tensors(folder, architecture, values):
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if quantised is not None and tensor.dim() > 1 and "blk." in stored and "gate_inp" not in stored:
            kind = GGMLQuantizationType[quantised]
            writer.add_tensor(stored, quantize(tensor.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, tensor.numpy())
    for stored, factors in _rope_factors(architecture, values, rope):
        writer.add_tensor(stored, factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def plain_vocabulary(writer: GGUFWriter, size: int = 99) -> None:
    """SentencePiece's three special pieces, then single characters."""
    pieces = ["<unk>", "<s>", "</s>", *(chr(0x100 + number) for number in range(size - 3))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(number) for number in range(size)])
    writer.add_token_types([2, 3, 3, *([1] * (size - 3))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _add_keys(writer: GGUFWriter, architecture: MODEL_ARCH, values: dict[str, Any], rope: dict[str, Any]) -> None:
    heads, hidden = values["num_attention_heads"], values["hidden_size"]
    head_dim = values.get("head_dim") or hidden // heads
    writer.add_context_length(values["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(values["num_hidden_layers"])
    writer.add_feed_forward_length(values["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(values["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(values["rms_norm_eps"])
    if values.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture != MODEL_ARCH.GEMMA2:
        writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    if (local := (values.get("rope_parameters") or {}).get("sliding_attention")) is not None:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if experts := values.get("num_local_experts") or values.get("num_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(values["num_experts_per_tok"])
    if architecture == MODEL_ARCH.QWEN3MOE:
        writer.add_expert_feed_forward_length(values["moe_intermediate_size"])
    if architecture == MODEL_ARCH.LLAMA:
        writer.add_vocab_size(values["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    if architecture == MODEL_ARCH.GEMMA2:
        writer.add_attn_logit_softcapping(values["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(values["final_logit_softcapping"])
    if architecture in (MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3, MODEL_ARCH.PHI3):
        writer.add_sliding_window(values["sliding_window"] or 0)
    if architecture == MODEL_ARCH.PHI3:
        writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * hidden) // heads)
        writer.add_rope_scaling_orig_ctx_len(
            rope.get("original_max_position_embeddings", values["max_position_embeddings"])
        )
        if (longest := rope.get("long_factor")) is not None:
            trained = rope["original_max_position_embeddings"]
            scale = values["max_position_embeddings"] / trained
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(trained)))
            assert len(longest) == len(rope["short_factor"])


def _tensors(folder: Path, architecture: MODEL_ARCH, values: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if found := _EXPERT.fullmatch(name):
            experts.setdefault(f"{found[1]}.experts.{found[3]}", {})[int(found[2])] = tensor.float()
            continue
        if architecture in (MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3) and name == "lm_head.weight":
            continue
        tensor = tensor.float()
        if architecture == MODEL_ARCH.LLAMA:
            for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
                if f".{part}." in name:
                    tensor = _permuted(tensor, values[heads])
        if architecture in (MODEL_ARCH.GEMMA2, MODEL_ARCH.GEMMA3) and name.endswith("norm.weight"):
            tensor = tensor + 1
        yield name, tensor.contiguous()
    for name, parts in experts.items():
        name = name.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward")
        name = name if "feed_forward" in name else f"model.{name}"
        yield f"{name}.weight", torch.stack([parts[number] for number in sorted(parts)])


def _permuted(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    return (
        tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
    )


def _rope_factors(
    architecture: MODEL_ARCH, values: dict[str, Any], rope: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    if architecture == MODEL_ARCH.PHI3 and rope.get("long_factor"):
        for length in ("long", "short"):
            yield f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"], dtype=np.float32)
    if rope.get("rope_type") == "llama3":
        head_dim = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
        frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
        trained, low, high = (
            rope[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        factors = []
        for length in (2 * math.pi / frequencies).tolist():
            smooth = (trained / length - low) / (high - low)
            factors.append(
                1.0
                if length < trained / high
                else rope["factor"]
                if length > trained / low
                else 1 / ((1 - smooth) / rope["factor"] + smooth)
            )
        yield "rope_freqs.weight", np.array(factors, dtype=np.float32)
