"""Models as llama.cpp stores them, beside transformers: greedy token for token, logits within 1e-4 (rule 42)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.errors import ModelError
from local_engine.models.registry import GGUF_ARCHITECTURES
from local_engine.runner import ModelRunner
from local_engine.weights.gguf_source import GGUFSource

from .llama_cpp import write_gguf
from .test_families import (
    EXPERTS,
    FAMILIES,
    GEMMA3_ROPE,
    GREEDY,
    assert_equals_transformers,
    engine,
    save_tiny,
    threads,
)
from .test_llama import LLAMA3

__all__ = ["threads"]

HEADS = {"query_pre_attn_scalar": 16, "tie_word_embeddings": True}
LOCAL = {**GEMMA3_ROPE, "sliding_attention": {"rope_type": "default", "rope_theta": 30_000.0}}
UNLIKE: dict[str, tuple[str, dict[str, Any]]] = {
    # What GGUF has no key for: Gemma's scores are scaled by head_dim (but for the 27B) and its head is the embedding; every layer
    # of a mixture has experts.
    "Qwen3 mixture": ("Qwen3Moe", {**EXPERTS, "num_experts": 6, "moe_intermediate_size": 32, "norm_topk_prob": True}),
    "Gemma 2": ("Gemma2", {**FAMILIES["Gemma 2"][1], **HEADS}),
    "Gemma 3": ("Gemma3", {**FAMILIES["Gemma 3"][1], **HEADS, "rope_parameters": LOCAL}),
    "Llama with biases": ("Llama", {"attention_bias": True}),
    "Llama 3.1": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 32}),
}
KEPT = (
    "Mistral without a window",
    "Qwen2",
    "Qwen2 stretched by yarn",
    "Qwen3",
    "Mixtral",
    "Phi-3",
    "Phi-3 with longrope",
)
STORED = {**{name: FAMILIES[name] for name in KEPT}, **UNLIKE}


@pytest.mark.parametrize("name", STORED)
def test_rule_42_a_gguf_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    model = save_tiny(tmp_path, *STORED[name])
    assert_equals_transformers(engine(write_gguf(tmp_path)), model, name)


def test_every_architecture_of_gguf_is_compared(tmp_path: Path) -> None:
    seen = set()
    for number, (family, changes) in enumerate(STORED.values()):
        save_tiny(tmp_path / str(number), family, changes)
        seen.add(GGUFSource(write_gguf(tmp_path / str(number))).config.architecture)
    assert seen == set(GGUF_ARCHITECTURES)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3 mixture", "Gemma 3", "Phi-3"])
def test_rule_42_matrices_in_eight_bits_are_what_the_gguf_package_makes_of_them(name: str, tmp_path: Path) -> None:
    """One expert's matrix in a stack, a joined one, one of permuted rows: each holds the values of its own blocks."""
    model = save_tiny(tmp_path, *STORED[name])
    runner = engine(write_gguf(tmp_path, quantised="Q8_0"))
    assert "Q8_0" in runner.precision
    with torch.inference_mode():
        for parameter_name, parameter in model.named_parameters():
            if ".layers." in parameter_name and parameter.dim() > 1 and not parameter_name.endswith(".gate.weight"):
                kind = GGMLQuantizationType.Q8_0
                parameter.copy_(torch.from_numpy(dequantize(quantize(parameter.numpy(), kind), kind)))
        tokens = list(range(5, 60))
        expected = model(torch.tensor([tokens])).logits[0]
    actual = runner.logits([ScheduledSequence(0, tokens, 0, [0, 1, 2, 3], True, GREEDY)])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_an_unknown_architecture_is_refused_with_the_names_of_those_that_are_known(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(str(path), "rwkv6")
    writer.add_block_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        ModelError, match="architecture 'rwkv6' are not supported; supported are llama, qwen2, qwen3, qwen3moe"
    ):
        ModelRunner(EngineConfig(str(path), device="cpu"))
