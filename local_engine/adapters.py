"""LoRA adapters in PEFT's folder format: y += (x Aᵀ) Bᵀ scale, for the rows of sequences that name one (arXiv:2106.09685).

Several serve in one batch; each one's pages are cached under the digest of its files, so that a name that stands for other
weights tomorrow finds nothing of today's.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kernels.low_rank import LowRank

from .errors import ModelError
from .models.layer import Linear

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KEY = re.compile(r"base_model\.model\.(model\.layers\.\d+\.[\w.]+)\.lora_(A|B)\.weight")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded one. `slot` is its number in the kernels, `digest` of its files."""

    name: str
    slot: int
    digest: bytes


def load_adapter(
    name: str,
    folder: Path,
    slot: int,
    linears: Sequence[Linear],
    *,
    max_rank: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Adapter:
    """Gives each of the model's matrices that the folder adapts its low-rank pair, or changes nothing and raises `ModelError`."""
    config = _read_config(name, folder)
    rank = int(config["r"])
    if rank > max_rank:
        raise ModelError(f"adapter {name} has rank {rank}; raise --max-lora-rank (now {max_rank}) to serve it")
    scale = float(config.get("lora_alpha", rank)) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    tensors = _read_tensors(name, folder)
    pairs = [(linear, _pair(name, linear, tensors, scale)) for linear in linears]
    unused = sorted(tensors.keys() - {part for linear in linears for part in linear.names})
    if unused:
        raise ModelError(f"adapter {name} adapts {unused[0]}, which this model has not, or not as a matrix of its own")
    for linear, pair in pairs:
        if pair is not None:
            linear.adapters.add(slot, LowRank(pair[0].to(device, dtype), pair[1].to(device, dtype)))
    digest = hashlib.sha256((folder / CONFIG).read_bytes())
    digest.update((folder / WEIGHTS).read_bytes())
    return Adapter(name, slot, digest.digest())


def _pair(
    name: str, linear: Linear, tensors: Mapping[str, dict[str, torch.Tensor]], scale: float
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A [ranks, inputs] of all parts of a joined matrix, and B [outputs, ranks] with each part's rows in its own columns."""
    parts = [tensors.get(part) for part in linear.names]
    if not any(parts):
        return None
    down, up, columns = [], [], sum(part["A"].shape[0] for part in parts if part)
    at = 0
    for part, outputs, label in zip(parts, linear.sizes, linear.names, strict=True):
        block = torch.zeros(outputs, columns)
        if part is not None:
            a, b = part.get("A"), part.get("B")
            if a is None or b is None or b.shape != (outputs, a.shape[0]):
                raise ModelError(f"adapter {name} does not fit {label}: it was made for another model")
            down.append(a.float())
            block[:, at : at + a.shape[0]] = b.float() * scale
            at += a.shape[0]
        up.append(block)
    try:
        a, b = torch.cat(down), torch.cat(up)
    except RuntimeError as error:
        raise ModelError(f"adapter {name} does not fit {linear.names[0]}: it was made for another model") from error
    if a.shape[1] != linear.inputs:
        raise ModelError(f"adapter {name} does not fit {linear.names[0]}: it was made for another model")
    if linear.columns is not None:
        a = a[:, linear.columns.start : linear.columns.stop]
    return a, b if linear.order is None else b[torch.from_numpy(linear.order)]


def _read_config(name: str, folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rank = values["r"]
    except FileNotFoundError as error:
        raise ModelError(f"adapter {name}: {folder} has no {CONFIG}: give a folder that PEFT saved") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"adapter {name}: {path} is not an adapter's configuration ({error}): save it again"
        ) from error
    for key, plain in (("use_dora", False), ("bias", "none"), ("modules_to_save", None), ("rank_pattern", {}),
                       ("alpha_pattern", {}), ("fan_in_fan_out", False)):  # fmt: skip
        if values.get(key, plain) not in (plain, None, []):
            raise ModelError(f"adapter {name} sets {key}, which is not supported: train it without, or merge it")
    if not isinstance(rank, int) or rank < 1:
        raise ModelError(f"adapter {name}: {path} has the rank {rank!r}: save it again")
    return values


def _read_tensors(name: str, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """By the matrix's name: its A and its B."""
    path = folder / WEIGHTS
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  # not a dict
                match = _KEY.fullmatch(key)
                if match is None:
                    raise ModelError(
                        f"adapter {name} adapts {key}, which is not supported (only matrices of layers are)"
                    )
                tensors.setdefault(match[1], {})[match[2]] = file.get_tensor(key)
    except FileNotFoundError as error:
        raise ModelError(f"adapter {name}: {folder} has no {WEIGHTS}: give a folder that PEFT saved") from error
    except SafetensorError as error:
        raise ModelError(f"adapter {name}: {path} is truncated or corrupt ({error}): copy it again") from error
    return tensors
