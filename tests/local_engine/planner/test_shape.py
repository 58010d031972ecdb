"""Reading a shape from wherever it is, and what is said when there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local_engine.errors import EngineError
from local_engine.planner.cli import QUANTIZATION
from local_engine.planner.limits import KV_DTYPES, SERVED, unsupported
from local_engine.planner.shape import SHAPES, Experts, Latent, known_name, known_names, read_shape

LLAMA = json.loads((SHAPES / "llama-3.1-8b.json").read_text())


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA, **changes}))
    return path


def test_a_folder_a_file_and_a_name_give_the_same_sizes(tmp_path: Path) -> None:
    path = written(tmp_path)
    sizes = [(s.layers, s.kv_heads, s.head_dim) for s in map(read_shape, (str(tmp_path), str(path), "llama-3.1-8b"))]
    assert sizes == [(32, 8, 128)] * 3


@pytest.mark.parametrize(
    "model", ["meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B", "LLAMA-3.1-8B", "llama-3.1-8b-chat"]
)
def test_maker_and_fine_tune_do_not_change_a_known_name(model: str) -> None:
    assert known_name(model) == "llama-3.1-8b"
    assert read_shape(model).hidden == 4096


def test_every_shipped_file_is_reachable_by_its_own_name() -> None:
    assert known_names() == [known_name(name) for name in known_names()]
    assert all(read_shape(name).name == name for name in known_names())


def test_latent_attention_and_experts_are_read() -> None:
    shape = read_shape("deepseek-v3")
    assert shape.latent == Latent(kv_rank=512, q_rank=1536, nope_dim=128, rope_dim=64, value_dim=128)
    assert shape.experts == Experts(count=256, intermediate=2048, shared=1, first=3, chosen=8)
    assert shape.stored == "fp8"


def test_layer_types_and_text_parts_are_read(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    path = written(tmp_path, sliding_window=1024, layer_types=kinds)
    assert read_shape(str(path)).windows == (1024, None) * 16
    nested = {"model_type": "gemma3", "text_config": {**LLAMA, "num_hidden_layers": 3}}
    path.write_text(json.dumps(nested))
    assert read_shape(str(path)).layers == 3


def test_qwen2_windows_begin_after_max_window_layers(tmp_path: Path) -> None:
    path = written(tmp_path, model_type="qwen2", sliding_window=64, use_sliding_window=True, max_window_layers=30)
    assert read_shape(str(path)).windows == (*(None,) * 30, 64, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "wide"}, "is not a model's configuration"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 7}, "32 query heads do not divide among 7 KV heads"),
        ({"torch_dtype": "int64"}, "dtype 'int64'"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised by bitsandbytes are not planned for"),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, "layer_types names 1 layers of 32"),
    ],
)
def test_a_configuration_that_is_none_says_why(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_shape(str(written(tmp_path, **changes)))


def test_a_missing_size_a_list_and_a_wrong_path_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 1}')
    with pytest.raises(EngineError, match=r"config.json has no 'num_attention_heads'"):
        read_shape(str(path))
    path.write_text("[1]")
    with pytest.raises(EngineError, match="holds no JSON object"):
        read_shape(str(path))
    path.unlink()
    with pytest.raises(EngineError, match=r"has no config.json: copy it"):
        read_shape(str(tmp_path))
    with pytest.raises(EngineError, match=r"no model 'gpt-7': give a folder .*llama-3.1-8b"):
        read_shape("gpt-7")
    with pytest.raises(EngineError, match="GGUF file, which the planner does not read"):
        read_shape("model.gguf")


def test_the_limits_that_a_plan_names_are_the_engines_own() -> None:
    import torch

    from local_engine.config import ROUNDED, EngineConfig
    from local_engine.kv_cache import CACHE_DTYPES
    from local_engine.runner import device_of

    assert {"LlamaForCausalLM", "Gemma3ForConditionalGeneration"} <= SERVED and "llama" not in SERVED
    assert set(CACHE_DTYPES) - {"fp8_e4m3"} == KV_DTYPES  # vLLM's other word for fp8
    for flag in QUANTIZATION:
        EngineConfig("m", quantization=flag)
    assert set(ROUNDED) <= set(QUANTIZATION)
    assert device_of(EngineConfig("m", device="cpu")) == torch.device("cpu")


def test_a_plan_says_where_pages_behind_a_window_are_kept(tmp_path: Path) -> None:
    def words(**changes: Any) -> list[str]:
        return unsupported(read_shape(str(written(tmp_path, **changes))), "bf16", "bfloat16", 1)

    mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    assert words(**mistral, sliding_window=64) == []
    gemma = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window": 64}
    assert words(**gemma) == [
        "this engine gives pages behind a window back only where every layer has one; here it keeps the pages of all layers"
    ]
    assert "not served by this engine yet" in words(architectures=["RwkvForCausalLM"], model_type="rwkv")[0]
