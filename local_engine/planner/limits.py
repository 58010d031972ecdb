"""What this engine does not run yet, so that a plan says it. A test holds these lines against the runner itself."""

from __future__ import annotations

from ..models.registry import ARCHITECTURES
from .shape import ModelShape
from .weights import GROUP, ROUNDED_GROUPS

SERVED = frozenset(name for name in ARCHITECTURES if name[0].isupper())
"""Under config.json's names; the others are GGUF's."""
KV_DTYPES = frozenset({"float32", "float16", "bfloat16", "fp8"})
GROUPS = {"int4": GROUP, **ROUNDED_GROUPS}
"""Inputs that no rank's edge may part, by precision."""


def unsupported(shape: ModelShape, precision: str, kv_dtype: str, ranks: int) -> list[str]:
    """One sentence for each thing that a plan asks for and this engine refuses."""
    found = []
    if shape.architecture not in SERVED:
        found.append(
            f"{shape.architecture} is not served by this engine yet; the figures hold for engines that serve it"
        )
    if any(shape.windows) and not all(shape.windows) and shape.architecture in SERVED:
        found.append(
            "this engine gives pages behind a window back only where every layer has one; here it keeps the pages of all layers"
        )
    group = GROUPS.get(precision)
    inputs = shape.heads * shape.head_dim
    if group and inputs % group:
        found.append(
            f"{precision}: the {inputs} inputs of attention's output matrix do not divide into groups of {group}; take smaller "
            "groups"
        )
    elif group and shape.heads // ranks * shape.head_dim % group:
        found.append(
            f"{precision} over {ranks} ranks: attention's output matrix would be cut within its groups of {group} inputs, which "
            "this engine refuses; take smaller groups or fewer ranks"
        )
    if precision == "int4":
        found.append(
            "int4 stands for an AWQ or GPTQ checkpoint in groups of 128 inputs: write one by `metergate engine quantize MODEL "
            "--awq`; --quantization int4 rounds plain weights in groups of 32, with more bytes"
        )
    if kv_dtype not in KV_DTYPES:
        found.append(f"this engine keeps no {kv_dtype} KV cache yet")
    return found
