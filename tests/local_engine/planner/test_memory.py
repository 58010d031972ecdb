"""The figures of a plan: weights counted against transformers' own models, KV bytes against the known truths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local_engine.errors import ConfigError
from local_engine.planner.devices import Device, find_device
from local_engine.planner.kv import kv_shape, valid_splits
from local_engine.planner.plan import Wish, plan_device, weight_count, what_fits
from local_engine.planner.shape import SHAPES, known_names, read_shape
from local_engine.planner.weights import weight_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-8b", 131_072),
        ("qwen2.5-7b", 57_344),
        ("deepseek-v3", 70_272),
        ("smollm2-135m", 23_040),
    ],
)
def test_kv_bytes_per_token_are_the_known_truths(model: str, expected: int) -> None:
    assert kv_shape(read_shape(model), "bfloat16").token_bytes == expected
    assert kv_shape(read_shape(model), "fp8").token_bytes * 2 == expected


def test_a_kilobyte_and_a_half_for_a_70b_model_is_213_times_too_small() -> None:
    assert round(kv_shape(read_shape("llama-3.1-70b"), "bfloat16").token_bytes / 1536) == 213


@pytest.mark.parametrize("model", known_names())
def test_every_shipped_shape_has_as_many_weights_as_transformers_gives_it(model: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values: dict[str, Any] = json.loads((SHAPES / f"{model}.json").read_text())
    values.pop("quantization_config", None)
    family = values.pop("model_type")
    values["num_hidden_layers"] = min(values["num_hidden_layers"], 8)  # both sides: layers repeat
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values))
    tensors = {**dict(theirs.named_parameters()), **_score_corrections(theirs)}
    from local_engine.planner.shape import parse_shape

    assert weight_count(parse_shape({**values, "model_type": family}, model)) == sum(
        t.numel() for t in tensors.values()
    )


def _score_corrections(model: Any) -> dict[str, Any]:
    """DeepSeek-V3's published weights hold these; transformers calls them buffers."""
    return {name: tensor for name, tensor in model.named_buffers() if name.endswith("e_score_correction_bias")}


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("qwen2.5-7b", 7_615_616_512),
        ("smollm2-135m", 134_515_008),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
    ],
)
def test_the_whole_models_have_the_counts_on_their_cards(model: str, weights: int) -> None:
    assert weight_count(read_shape(model)) == weights


def test_deepseek_v3_has_671_billion_weights() -> None:
    assert round(weight_count(read_shape("deepseek-v3")) / 1e9) == 671


def test_embeddings_and_norms_stay_wide_when_linears_are_quantised() -> None:
    shape = read_shape("llama-3.1-8b")
    wide, narrow = weight_bytes(shape, "bf16"), weight_bytes(shape, "int4")
    assert wide.embeddings == narrow.embeddings == 2 * 2 * 128_256 * 4096
    assert wide.norms == narrow.norms == 2 * 65 * 4096
    assert wide.linear == 2 * 32 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14_336)
    values = wide.linear // 2
    assert narrow.linear == values // 2 + values // 128 * 5 // 2  # a float16 scale and half a byte per 128
    assert weight_bytes(shape, "fp32").total == 2 * wide.total


def test_tied_embeddings_count_once() -> None:
    assert weight_bytes(read_shape("smollm2-135m"), "bf16").embeddings == 2 * 49_152 * 576


def test_a_window_bounds_what_its_layers_keep() -> None:
    kv = kv_shape(read_shape("gemma-2-9b"), "bfloat16")
    layer = 2 * 8 * 256 * 2
    assert kv.token_bytes == 42 * layer
    assert kv.sequence_bytes(4096) == 42 * layer * 4096
    assert kv.sequence_bytes(8192) == 21 * layer * 8192 + 21 * layer * (4096 + 16)
    assert list(read_shape("gemma-3-1b").windows[:12]) == [*[512] * 5, None] * 2
    assert read_shape("mistral-7b-v0.1").windows == (4096,) * 32
    assert read_shape("qwen2.5-7b").windows == (None,) * 28


def test_more_ranks_than_kv_heads_hold_copies() -> None:
    shape = read_shape("qwen2.5-7b")
    assert [kv_shape(shape, "bfloat16", ranks).token_bytes for ranks in (1, 2, 4)] == [57_344, 28_672, 14_336]
    assert valid_splits(shape) == [1, 2, 4]
    wide = read_shape("llama-3.1-8b")
    assert kv_shape(wide, "bfloat16", 16).token_bytes == kv_shape(wide, "bfloat16", 8).token_bytes == 16_384
    latent = read_shape("deepseek-v3")
    assert kv_shape(latent, "bfloat16", 8).token_bytes == 70_272  # the latent is whole on every rank


def test_ranks_share_the_linears_and_copy_the_norms() -> None:
    shape = read_shape("llama-3.1-8b")
    one, four = weight_bytes(shape, "bf16"), weight_bytes(shape, "bf16", 4)
    assert (four.linear * 4, four.embeddings * 4, four.norms) == (one.linear, one.embeddings, one.norms)
    sixteen = weight_bytes(shape, "bf16", 16)  # a whole KV head each, though a sixteenth of the rest
    assert sixteen.linear - one.linear // 16 == 2 * 32 * 2 * 128 * 4096 - 2 * 32 * 2 * 1024 * 4096 // 16


def wish(precision: str = "bf16", **changes: Any) -> Wish:
    return Wish(**{"precision": precision, "kv_dtype": "bfloat16", "max_model_len": 8192, **changes})


def test_a_70b_model_fits_four_gpus_of_80_gb_in_bf16_with_room_for_kv() -> None:
    plan = plan_device(read_shape("llama-3.1-70b"), wish(), find_device("H100"), 4)
    assert plan.fits and plan.pool_bytes > 36 * GIB
    assert plan.tokens == plan.blocks * 16 == plan.pool_bytes // (81_920 * 16) * 16
    assert plan.sequences == plan.pool_bytes // (81_920 * 8192)
    assert plan.longest == 131_072
    whole = wish(max_model_len=131_072)
    assert plan_device(read_shape("llama-3.1-70b"), whole, find_device("H100"), 4).sequences == 3
    assert not plan_device(read_shape("llama-3.1-70b"), whole, find_device("H100"), 2).fits


def test_a_70b_model_fits_one_h200_only_in_8_or_4_bits() -> None:
    shape, device = read_shape("llama-3.1-70b"), find_device("h200")
    fits = {
        precision: plan_device(shape, wish(precision), device, 1).fits for precision in ("bf16", "fp8", "int8", "int4")
    }
    assert fits == {"bf16": False, "fp8": True, "int8": True, "int4": True}
    assert {(p.ranks, p.precision) for p in what_fits(shape, wish()) if p.device == "H200"} == {
        *((2, "bf16"), (1, "fp8"), (1, "int8"), (1, "int4"))
    }


def test_a_plan_adds_up_to_the_share_of_the_memory() -> None:
    device = Device("odd", 30 * GIB, fp8=True)
    plan = plan_device(read_shape("llama-3.1-8b"), wish(utilization_ppm=500_000), device, 1)
    parts = plan.weights.total + plan.activation_bytes + plan.graph_bytes + plan.runtime_bytes + plan.pool_bytes
    assert parts == 15 * GIB
    assert plan.pool_bytes < 0 and (plan.blocks, plan.tokens, plan.longest, plan.sequences, plan.fits) == (
        0,
        0,
        0,
        0,
        False,
    )
    eager = plan_device(read_shape("llama-3.1-8b"), wish(eager=True, utilization_ppm=500_000), device, 1)
    assert eager.pool_bytes == plan.pool_bytes + plan.graph_bytes


def test_a_capped_pool_says_the_longest_context_that_fits() -> None:
    device = Device("odd", 80 * GIB, fp8=True)
    plan = plan_device(read_shape("llama-3.1-8b"), wish(kv_cache_memory_bytes=131_072 * 160), device, 1)
    assert (plan.blocks, plan.tokens, plan.longest, plan.fits) == (10, 160, 160, False)


def test_an_impossible_split_names_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"2 does not divide 9 query and 3 KV heads; valid are 1, 3, 9"):
        plan_device(read_shape("smollm2-135m"), wish(max_model_len=512), find_device("L4"), 2)
