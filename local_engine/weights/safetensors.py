"""A folder of safetensors files as a source of weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from kernels.linear import stored
from kernels.quantised_weight import Weight

from ..errors import ModelError
from ..models.config import read_folder_config
from .checkpoint_formats import Tensors, checkpoint_format
from .embedding import Embedding, TorchEmbedding
from .gguf import refuse_lfs_pointer

INDEX = "model.safetensors.index.json"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class SafetensorsSource:
    def __init__(self, folder: Path) -> None:
        self.config = read_folder_config(folder)
        self._folder = folder
        self._place_of = {_text_name(name): (path, name) for path, names in _open_all(folder).items() for name in names}
        self._format = checkpoint_format(self.config.own)
        self.stored_as = None if self._format is None else self._format.method
        self.precision = self.config.dtype if self._format is None else self._format.description
        self.stores_bfloat16 = self.config.dtype == "bfloat16"

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self._stored(name)
        if tensor.dtype not in FLOATS:
            raise ModelError(
                f"{self._folder}: tensor {name} is {tensor.dtype}, and config.json does not say of which quantisation; this "
                "engine reads float32, float16 and bfloat16, and what quantization_config names"
            )
        return tensor

    def _stored(self, name: str) -> torch.Tensor:
        place = self._place_of.get(name)
        if place is None:
            raise ModelError(f"{self._folder} has no tensor {name}: it is incomplete, or of another family")
        path, stored_name = place
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(stored_name)
        return tensor

    def has(self, name: str) -> bool:
        return name in self._place_of

    def matrix(self, name: str) -> Weight:
        if self._format is not None:
            weight = self._format.matrix(Tensors(name.removesuffix(".weight"), self._stored, self.has))
            if weight is not None:
                return weight
        return stored(self._tensor(name))

    def vector(self, name: str) -> torch.Tensor:
        return self._tensor(name).float()

    def embedding(self, name: str) -> Embedding:
        return TorchEmbedding(self._tensor(name))

    def rotary_factors(self) -> torch.Tensor | None:
        return None


def _text_name(name: str) -> str:
    """A tensor's name in the language model alone, where the file holds more than that."""
    for prefix, own in (("model.language_model.", "model."), ("language_model.", "")):
        if name.startswith(prefix):
            return own + name.removeprefix(prefix)
    return name


def _open_all(folder: Path) -> dict[Path, list[str]]:
    """Tensor names by file, each file checked once: a pointer, a truncated and a missing file are named with the remedy."""
    index = folder / INDEX
    if index.is_file():
        try:
            files = [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"{index} is not an index of weights: download it again") from error
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} has a config.json but no *.safetensors file: download the weights too")
    return {path: _names(path) for path in files}


def _names(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            refuse_lfs_pointer(path, file.read(200))
        with safe_open(path, framework="pt") as opened:
            return list(opened.keys())
    except FileNotFoundError as error:
        raise ModelError(f"{path} is missing although the index names it: download it too") from error
    except SafetensorError as error:
        raise ModelError(f"{path} is truncated or corrupt ({error}): download it again") from error
