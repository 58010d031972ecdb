"""Which family serves which architecture. A new family is one file and its lines here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import ModelError
from .config import ModelConfig
from .family import Family
from .gemma import gemma2, gemma3
from .llama import llama
from .mistral import mistral
from .mixture import mixtral, qwen3_moe
from .phi3 import phi3
from .qwen import qwen2, qwen3

ARCHITECTURES: Mapping[str, Callable[[ModelConfig], Family]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "MixtralForCausalLM": mixtral,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3,
    "Phi3ForCausalLM": phi3,
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
}
"""config.json's names, and GGUF's."""


def family_of(config: ModelConfig) -> Family:
    """Raises `ModelError` naming what there is, or what the family lacks."""
    try:
        make = ARCHITECTURES[config.architecture]
    except KeyError as error:
        raise ModelError(
            f"models of architecture {config.architecture!r} are not supported; supported are "
            f"{', '.join(ARCHITECTURES)}"
        ) from error
    try:
        return make(config)
    except KeyError as error:
        raise ModelError(f"config.json has no {error}: download it again, or take another model") from error
