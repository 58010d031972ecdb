"""Every family beside transformers, on tiny random models that transformers saved: greedy token for token, logits within 1e-4.

Greedy by teacher forcing: the oracle reads prompt and output at once, and its best token after every prefix must be the one that
the engine drew. Where its two best logits lie within 1e-4, either is right; such ties are counted and stay under 1 %.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from local_engine.batch import ScheduledSequence
from local_engine.config import EngineConfig
from local_engine.runner import ModelRunner
from local_engine.sampling_params import SamplingParams

from .tiny_llama import SMALL

TIE = 1e-4
PROMPTS, OUTPUT = (3, 40, 71), 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=OUTPUT)
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "partial_rotary_factor": 0.75,
}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 3}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Mistral": ("Mistral", {"sliding_window": 21, "head_dim": 32}),
    "Mistral without a window": ("Mistral", {"sliding_window": None}),
    "Qwen2": ("Qwen2", {}),
    "Qwen2 with windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1}),
    "Qwen2 stretched by yarn": (
        "Qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "Qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "Qwen3 mixture": (
        "Qwen3Moe",
        {**EXPERTS, "num_experts": 6, "moe_intermediate_size": 32, "mlp_only_layers": [1], "norm_topk_prob": True},
    ),
    "Mixtral": ("Mixtral", {**EXPERTS, "num_local_experts": 4, "sliding_window": None}),
    "Gemma 2": ("Gemma2", {"head_dim": 16, "sliding_window": 17, "query_pre_attn_scalar": 24, "num_hidden_layers": 3}),
    "Gemma 3": (
        "Gemma3",
        {"head_dim": 16, "sliding_window": 18, "num_hidden_layers": 7, "rope_parameters": GEMMA3_ROPE},
    ),
    "Phi-3": ("Phi3", {"sliding_window": 33}),
    "Phi-3 with longrope": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def save_tiny(folder: Path, family: str, changes: dict[str, Any]) -> Any:
    """A random model, its norms and biases moved away from where transformers starts them; returns transformers' own."""
    torch.manual_seed(5)
    name = {"Gemma3": "Gemma3Text"}.get(family, family)
    special: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **special, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter_name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(
                parameter, mean=1.0 if "norm" in parameter_name and "Gemma" not in family else 0.0, std=0.2
            )
    model.save_pretrained(folder)
    return model


def engine(folder: Path, **config: Any) -> ModelRunner:
    return ModelRunner(EngineConfig(str(folder), device="cpu", dtype="float32", num_blocks_override=40, **config))


def generate(runner: ModelRunner, prompts: list[list[int]], chunk: int) -> list[list[int]]:
    """All prompts in one batch, read in chunks."""
    rows = [list(prompt) for prompt in prompts]
    done = [0] * len(rows)
    while any(len(row) < len(prompt) + OUTPUT for row, prompt in zip(rows, prompts, strict=True)):
        batch = []
        for number, row in enumerate(rows):
            new = row[done[number] : done[number] + chunk]
            table, last = list(range(number * 10, number * 10 + 10)), done[number] + len(new) == len(row)
            batch.append(ScheduledSequence(number, new, done[number], table, last, GREEDY))
        for number, tokens in enumerate(runner.execute(batch).tokens):
            done[number] += len(batch[number].token_ids)
            rows[number] += tokens
    return [row[len(prompt) : len(prompt) + OUTPUT] for row, prompt in zip(rows, prompts, strict=True)]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_output_and_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    model = save_tiny(tmp_path, *FAMILIES[name])
    assert_equals_transformers(engine(tmp_path), model, name)


def assert_equals_transformers(runner: ModelRunner, model: Any, name: str) -> None:
    random = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, SMALL["vocab_size"], (count,), generator=random).tolist() for count in PROMPTS]
    ties = 0
    for prompt, output in zip(prompts, generate(runner, prompts, chunk=16), strict=True):
        whole = prompt + output
        with torch.inference_mode():
            logits = model(torch.tensor([whole if len(whole) > 64 else [*whole, *([0] * 65)]])).logits[0, : len(whole)]
        table = list(range(30, 40))
        actual = runner.logits([ScheduledSequence(9, whole, 0, table, samples=True, params=GREEDY)])
        torch.testing.assert_close(actual, logits, rtol=0, atol=1e-4)
        for position, token in enumerate(output, len(prompt) - 1):
            if token != int(logits[position].argmax()):
                assert float(logits[position].max() - logits[position, token]) < TIE, f"{name} at {position}"
                ties += 1
    assert ties <= OUTPUT * len(prompts) // 100


def test_longrope_takes_its_short_factors_where_the_context_is_short(tmp_path: Path) -> None:
    model = save_tiny(tmp_path, *FAMILIES["Phi-3 with longrope"])
    tokens = list(range(5, 55))
    actual = engine(tmp_path, max_model_len=64).logits([ScheduledSequence(0, tokens, 0, [0, 1, 2, 3], True, GREEDY)])
    with torch.inference_mode():
        torch.testing.assert_close(actual, model(torch.tensor([tokens])).logits[0], rtol=0, atol=1e-4)


def test_plain_torch_computes_the_same(tmp_path: Path) -> None:
    for family in ("Gemma2", "Qwen3Moe", "Qwen2"):
        name, changes = next(item for item in FAMILIES.values() if item[0] == family)
        save_tiny(tmp_path / family, name, changes)
        share = [ScheduledSequence(0, list(range(3, 60)), 0, [5, 1, 9, 2], True, GREEDY)]
        fast, plain = engine(tmp_path / family), engine(tmp_path / family, kernels="torch")
        assert "numba" in fast.precision and "numba" not in plain.precision
        torch.testing.assert_close(fast.logits(share), plain.logits(share), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("stored_as", "outer"), [("language_model.model.", "language_model."), ("model.language_model.", "")]
)
def test_the_text_of_a_model_that_also_sees_is_served(stored_as: str, outer: str, tmp_path: Path) -> None:
    """Gemma 3 from 4B on: the language model is a part of the configuration and of the file."""
    model = save_tiny(tmp_path, *FAMILIES["Gemma 3"])
    values = json.loads((tmp_path / "config.json").read_text())
    text = {name: item for name, item in values.items() if name not in ("architectures", "rms_norm_eps")}
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "vision_config": {},
        "dtype": "float32",
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    weights = load_file(tmp_path / "model.safetensors")
    renamed = {
        stored_as + name.removeprefix("model.") if name.startswith("model.") else outer + name: tensor
        for name, tensor in weights.items()
    }
    save_file({**renamed, "vision_tower.x": torch.zeros(1)}, tmp_path / "model.safetensors")
    tokens = list(range(5, 65))
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    actual = engine(tmp_path, max_model_len=128).logits([ScheduledSequence(0, tokens, 0, [0, 1, 2, 3], True, GREEDY)])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
