"""The whole engine on a device: a small random model, served as any other, draws the same tokens as on plain torch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bench.gpu_checks import Verdict
from bench.gpu_setting import Setting
from local_engine.batch import ScheduledSequence
from local_engine.config import BLOCK_SIZE, EngineConfig
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY, POSITIONS = 64, 96, 2, 4, 2, 99, 128
PROMPTS = ([5, 17, 3], list(range(20, 57)), [9])
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, top_k=20, seed=4),
    SamplingParams(temperature=0.0, repetition_penalty=1.3),
)
FORMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("graphs", {}),
    ("launched one by one", {"enforce_eager": True}),
    ("fp8 cache", {"kv_cache_dtype": "fp8"}),
)


def check_engine(setting: Setting, tokens: int) -> Iterator[Verdict]:
    """In float32, where the two paths' logits differ by less than tokens do. An error is the number of tokens that differ."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _save(folder)
        for name, changes in FORMS:
            found, expected = (
                _generate(_runner(folder, setting, kernels, **changes), tokens) for kernels in ("triton", "torch")
            )
            wrong = sum(
                a != b for own, plain in zip(found, expected, strict=True) for a, b in zip(own, plain, strict=True)
            )
            yield Verdict(f"engine, {name}", float(wrong), 0.0)


def _runner(folder: Path, setting: Setting, kernels: str, **changes: Any) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            str(folder), device=setting.device.type, dtype="float32", kernels=kernels, max_num_seqs=4,
            max_num_batched_tokens=64, **changes,
        )
    )  # fmt: skip


def _generate(runner: ModelRunner, count: int) -> list[list[int]]:
    """First the prompts in one step, then a token for each of them in every step."""
    outputs: list[list[int]] = [[] for _ in PROMPTS]
    pages = POSITIONS // BLOCK_SIZE
    for position in range(count):
        batch = [
            ScheduledSequence(
                number, own[-1:] if position else prompt, len(prompt) + position - 1 if position else 0,
                range(number * pages, (number + 1) * pages), True, params, output_position=position,
                prompt_token_ids=prompt, output_token_ids=own,
            )
            for number, (prompt, own, params) in enumerate(zip(PROMPTS, outputs, PARAMS, strict=True))
        ]  # fmt: skip
        for own, drawn in zip(outputs, runner.execute(batch).tokens, strict=True):
            own.append(drawn[0] if drawn else -1)
    return outputs


def _save(folder: Path) -> None:
    """As transformers saves a Llama."""
    random = torch.Generator().manual_seed(3)
    size = HIDDEN // HEADS

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return torch.randn(outputs, inputs, generator=random) * 0.2

    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN), "lm_head.weight": matrix(VOCABULARY, HIDDEN)}
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV_HEADS * size, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * size, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        }  # fmt: skip
        prefix = f"model.layers.{layer}."
        tensors |= {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {
            f"{prefix}{name}.weight": torch.ones(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")
        }
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": size,
        "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "max_position_embeddings": POSITIONS, "tie_word_embeddings": False,
        "dtype": "float32", "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
