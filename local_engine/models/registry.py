"""Which family serves which architecture. A new family is one file and its lines here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..errors import ModelError
from .config import ModelConfig
from .family import Family
from .gemma import gemma2, gemma3
from .llama import llama
from .mistral import mistral
from .mixture import mixtral, qwen3_moe
from .phi3 import phi3
from .qwen import qwen2, qwen3


def _llama_of_gguf(config: ModelConfig) -> Family:
    """llama.cpp's `llama` is Llama, Mistral and Mixtral."""
    return mixtral(config) if config.own.get("num_local_experts") else llama(config)


GGUF_ARCHITECTURES: Mapping[str, Callable[[ModelConfig], Family]] = {
    "llama": _llama_of_gguf,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3moe": qwen3_moe,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "phi3": phi3,
}
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
    **GGUF_ARCHITECTURES,
}
"""config.json's names, and GGUF's."""


def unknown_architecture(name: str, known: Iterable[str] = ARCHITECTURES) -> ModelError:
    return ModelError(f"models of architecture {name!r} are not supported; supported are {', '.join(known)}")


def family_of(config: ModelConfig) -> Family:
    """Raises `ModelError` naming what there is, or what the family lacks."""
    try:
        make = ARCHITECTURES[config.architecture]
    except KeyError as error:
        raise unknown_architecture(config.architecture) from error
    try:
        return make(config)
    except KeyError as error:
        raise ModelError(f"config.json has no {error}: download it again, or take another model") from error
