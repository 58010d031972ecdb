"""Which class serves which architecture. A new family is one file and its lines here."""

from __future__ import annotations

from ..errors import ModelError
from .llama import Llama

ARCHITECTURES: dict[str, type[Llama]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "llama": Llama,
}
"""config.json's names, and GGUF's."""


def model_class(architecture: str) -> type[Llama]:
    """Raises `ModelError` naming what there is."""
    try:
        return ARCHITECTURES[architecture]
    except KeyError as error:
        raise ModelError(
            f"models of architecture {architecture!r} are not supported; supported are {', '.join(ARCHITECTURES)}"
        ) from error
