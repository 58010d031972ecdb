"""Rule 42: rotary frequencies against transformers' own, for each scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from kernels.rotary import rotary_frequencies, rotary_reference, rotary_tables

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "linear", "factor": 4.0}, LLAMA3], ids=["default", "linear", "llama3"]
)
def test_rule_42_rope_scaling_equals_transformers(scaling: dict[str, Any] | None) -> None:
    parameters = {"rope_theta": 500000.0, **(scaling or {"rope_type": "default"})}
    config = LlamaConfig(
        hidden_size=512, num_attention_heads=4, head_dim=128, max_position_embeddings=131072, rope_parameters=parameters
    )
    expected = LlamaRotaryEmbedding(config).inv_freq
    torch.testing.assert_close(rotary_frequencies(128, 500000.0, scaling), expected, rtol=1e-6, atol=0)


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(ValueError, match="'yarn'"):
        rotary_frequencies(64, 10000.0, {"rope_type": "yarn", "factor": 2.0})


def test_the_rotation_equals_transformers() -> None:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(10, 2, 32, generator=random)
    cos, sin = rotary_tables(rotary_frequencies(32, 10000.0, None), 10)
    expected, _ = apply_rotary_pos_emb(
        x.transpose(0, 1)[None],
        x.transpose(0, 1)[None],
        torch.cat((cos, cos), -1)[None],
        torch.cat((sin, sin), -1)[None],
    )
    torch.testing.assert_close(rotary_reference(x, cos, sin), expected[0].transpose(0, 1))
