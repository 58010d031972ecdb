"""Rule 42: rotary frequencies against transformers' own, for each scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from kernels.rope_scaling import partial_order, rotation
from kernels.rotary import rotary_reference, rotary_tables

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 4096,
    "short_factor": [1.0 + i / 100 for i in range(64)],
    "long_factor": [1.0 + i for i in range(64)],
}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with its own constants": {
        **YARN, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False,
    },
    "longrope": LONG,
}  # fmt: skip


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("positions", [4096, 200_000])
def test_rule_42_rope_scaling_equals_transformers(name: str, positions: int) -> None:
    parameters = {"rope_theta": 500000.0, **SCALINGS[name]}
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=4, head_dim=128, max_position_embeddings=131072, rope_parameters=parameters
    )
    if name == "default":
        expected, magnitude = LlamaRotaryEmbedding(config).inv_freq, 1.0
    else:
        expected, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"), positions)
    actual = rotation(128, parameters, trained=131072, positions=positions)
    torch.testing.assert_close(actual.frequencies, expected, rtol=1e-6, atol=0)
    assert actual.magnitude == pytest.approx(magnitude, rel=1e-12)


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ValueError, match="'mrope'"):
        rotation(64, {"rope_type": "mrope", "rope_theta": 1e4}, trained=64, positions=64)


def test_a_part_of_a_head_rotates_as_in_transformers_in_another_order_of_rows() -> None:
    scaling = {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    order = partial_order(32, scaling)
    assert order is not None and sorted(order) == list(range(32))
    x = torch.randn(10, 1, 32, generator=torch.Generator().manual_seed(3))
    whole = rotary_tables(rotation(24, {"rope_theta": 10000.0}, trained=16, positions=16), 10)
    expected = torch.cat((rotary_reference(x[..., :24], *whole), x[..., 24:]), -1)
    actual = rotary_reference(x[..., order], *rotary_tables(rotation(32, scaling, trained=16, positions=16), 10))
    torch.testing.assert_close(actual, expected[..., order])


def test_the_rotation_equals_transformers() -> None:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(10, 2, 32, generator=random)
    cos, sin = rotary_tables(rotation(32, {"rope_theta": 10000.0}, trained=16, positions=16), 10)
    expected, _ = apply_rotary_pos_emb(
        x.transpose(0, 1)[None],
        x.transpose(0, 1)[None],
        torch.cat((cos, cos), -1)[None],
        torch.cat((sin, sin), -1)[None],
    )
    torch.testing.assert_close(rotary_reference(x, cos, sin), expected[0].transpose(0, 1))
