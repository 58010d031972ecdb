"""What this engine does not run yet, so that a plan says it. A test holds these lines against the runner itself."""

from __future__ import annotations

from ..models.registry import ARCHITECTURES
from .shape import ModelShape

SERVED = frozenset(name for name in ARCHITECTURES if name[0].isupper())
"""Under config.json's names; the others are GGUF's."""
SPLITS = False
"""Tensor parallelism."""
KV_DTYPES = frozenset({"float32", "float16", "bfloat16", "fp8"})


UNSPLIT = "this engine does not split a model over GPUs yet"


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
    if ranks > 1 and not SPLITS:
        found.append(UNSPLIT)
    if precision == "int4":
        found.append(
            "int4 stands for an AWQ or GPTQ checkpoint in groups of 128 inputs: write one by `metergate engine quantize MODEL "
            "--awq`; --quantization int4 rounds plain weights in groups of 32, with more bytes"
        )
    if kv_dtype not in KV_DTYPES:
        found.append(f"this engine keeps no {kv_dtype} KV cache yet")
    return found
