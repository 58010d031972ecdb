"""The frequencies of rotary position embedding, for every way in which models stretch them beyond their training length.

Plain: f_i = theta^(-2 i / d) for i < d / 2. A scaling changes f, and may multiply cos and sin by a factor a (`magnitude`).
Sources: linear https://arxiv.org/abs/2306.15595; dynamic (NTK) https://arxiv.org/abs/2309.00071, section 3; yarn the same
paper, section 3.4; llama3 Llama 3.1's reference code (apply_scaling); longrope https://arxiv.org/abs/2402.13753.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Scaling = Mapping[str, Any]
"""What a config.json's `rope_parameters` say, with `rope_theta` in it."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """`frequencies` float32 [head_dim / 2], 0 for pairs that are not rotated; cos and sin are multiplied by `magnitude`."""

    frequencies: torch.Tensor
    magnitude: float = 1.0


def rotation(head_dim: int, scaling: Scaling, *, trained: int, positions: int) -> Rotation:
    """The rotation of a head of `head_dim`, for contexts of up to `positions` tokens of a model that names `trained` of them.

    `partial_rotary_factor` rotates the first part of a head only; rows must then be ordered by `partial_order`. dynamic and
    longrope depend on the length of the context: it is `positions` for every sequence, so that a key does not depend on
    what follows it (as vLLM has it). Raises ValueError for a type it does not know.
    """
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    scale = _KINDS.get(kind)
    if scale is None:
        raise ValueError(f"rope_scaling of type {kind!r}")
    rotated = int(head_dim * float(scaling.get("partial_rotary_factor") or 1.0))
    result = scale(rotated, scaling, trained, positions)
    rest = (head_dim - rotated) // 2
    return Rotation(torch.nn.functional.pad(result.frequencies, (0, rest)), result.magnitude)


def partial_order(head_dim: int, scaling: Scaling) -> list[int] | None:
    """Where only the first r < d values of a head rotate, in pairs (i, i + r / 2): the order of a head's rows that brings each
    pair to (i, i + d / 2). Queries and keys take the same order, so their products stay. None where all rotate.
    """
    rotated = int(head_dim * float(scaling.get("partial_rotary_factor") or 1.0))
    if rotated == head_dim:
        return None
    half, rest = rotated // 2, (head_dim - rotated) // 2
    passed = range(rotated, head_dim)
    return [*range(half), *passed[:rest], *range(half, rotated), *passed[rest:]]


def _plain(size: int, theta: float) -> torch.Tensor:
    return 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))


def _default(size: int, scaling: Scaling, trained: int, positions: int) -> Rotation:
    return Rotation(_plain(size, float(scaling["rope_theta"])))


def _linear(size: int, scaling: Scaling, trained: int, positions: int) -> Rotation:
    return Rotation(_plain(size, float(scaling["rope_theta"])) / float(scaling["factor"]))


def _dynamic(size: int, scaling: Scaling, trained: int, positions: int) -> Rotation:
    factor, length = float(scaling["factor"]), max(positions, trained)
    stretch = factor * length / trained - (factor - 1)
    return Rotation(_plain(size, float(scaling["rope_theta"]) * stretch ** (size / (size - 2))))


def _llama3(size: int, scaling: Scaling, trained: int, positions: int) -> Rotation:
    """Long wavelengths are stretched by `factor`, short ones left, those between blended."""
    frequencies = _plain(size, float(scaling["rope_theta"]))
    factor, context = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / frequencies
    blend = (context / wavelength - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    stretched = torch.where(wavelength > context / low, frequencies / factor, frequencies)
    between = (wavelength <= context / low) & (wavelength >= context / high)
    return Rotation(torch.where(between, blended, stretched))


def _yarn(size: int, scaling: Scaling, trained: int, positions: int) -> Rotation:
    theta, original = float(scaling["rope_theta"]), float(scaling.get("original_max_position_embeddings") or trained)
    factor = float(scaling.get("factor") or trained / original)

    def pair_that_turns(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_turns(float(scaling.get("beta_fast") or 32))
    high = pair_that_turns(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    frequencies = _plain(size, theta)
    return Rotation(frequencies / factor * ramp + frequencies * (1 - ramp), _yarn_magnitude(scaling, factor))


def _yarn_magnitude(scaling: Scaling, factor: float) -> float:
    if (given := scaling.get("attention_factor")) is not None:
        return float(given)

    def of(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return of(float(scaling["mscale"])) / of(float(scaling["mscale_all_dim"]))
    return of(1.0)


def _longrope(size: int, scaling: Scaling, trained: int, positions: int) -> Rotation:
    original = int(scaling.get("original_max_position_embeddings") or trained)
    factors = scaling["long_factor" if positions > original else "short_factor"]
    if len(factors) != size // 2:
        raise ValueError(f"rope_scaling with {len(factors)} factors for {size // 2} frequencies")
    factor = float(scaling.get("factor") or trained / original)
    magnitude = scaling.get("attention_factor")
    if magnitude is None:
        magnitude = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    frequencies = _plain(size, float(scaling["rope_theta"])) / torch.tensor(factors, dtype=torch.float32)
    return Rotation(frequencies, float(magnitude))


_KINDS: Mapping[str, Callable[[int, Scaling, int, int], Rotation]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
KINDS = tuple(_KINDS)
