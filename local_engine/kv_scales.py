"""Scales of a KV cache in fp8, one for each layer and KV head: the checkpoint's own, or measured at start.

e4m3 has 15 powers of two, so that where a head's values lie in them costs nothing; only what is above the largest is lost.
Measured scales therefore leave `ROOM` above the largest value seen, and are powers of two: dividing by them rounds nothing.
"""

from __future__ import annotations

import torch

from kernels.batch import StepLayout
from kernels.fp8 import FP8_LARGEST, CacheScales

from .config import BLOCK_SIZE
from .errors import ModelError
from .kv_cache import allocate
from .models.decoder import Decoder
from .weights.source import WeightSource

ROOM = 4.0
TOKENS = 256
"""That the measurement computes: any tokens do, since ROOM is far more than texts differ by."""


def stored_scales(source: WeightSource, heads: range, device: torch.device) -> list[CacheScales] | None:
    """Of these KV heads, as compressed-tensors, vLLM and ModelOpt name them; None where there are none. Raises `ModelError`."""
    found = [_stored_pair(source, layer, heads, device) for layer in range(source.config.layers)]
    pairs = [pair for pair in found if pair is not None]
    if pairs and len(pairs) < len(found):
        raise ModelError(
            f"the model has scales of its KV cache for {len(pairs)} of {len(found)} layers: download it again, or leave out "
            "--kv-cache-dtype fp8"
        )
    return pairs or None


def _stored_pair(source: WeightSource, layer: int, heads: range, device: torch.device) -> CacheScales | None:
    prefix = f"model.layers.{layer}.self_attn."
    both = []
    for kind in "kv":
        names = (f"{kind}_scale", f"attn.{kind}_scale", f"{kind}_proj.{kind}_scale", "kv_scale")
        name = next((prefix + name for name in names if source.has(prefix + name)), None)
        if name is None:
            return None
        values, whole = source.vector(name).flatten(), source.config.kv_heads
        if len(values) not in (1, whole) or not bool(((values > 0) & values.isfinite()).all()):
            raise ModelError(
                f"{name} must be one positive number, or one for each of {whole} KV heads: download the model again"
            )
        both.append(values.expand(whole)[heads.start : heads.stop].to(device).contiguous())
    return CacheScales(both[0], both[1])


def measured_scales(model: Decoder, dtype: torch.dtype, device: torch.device, most: int) -> list[CacheScales]:
    """Computes at most `most` tokens with a cache of `dtype`, and looks at the largest key and value of each head."""
    count = min(TOKENS, most)
    blocks = -(-count // BLOCK_SIZE)
    cache = allocate(model.config, blocks, dtype, device)
    model.attach(cache)
    ids = torch.randint(model.config.vocab_size, (count,), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(count, device=device)
    layout = StepLayout([0, count], [count], positions, positions, torch.arange(blocks, device=device)[None, :])
    with torch.inference_mode():
        model.compute(ids, layout)
        return [CacheScales(_scales(keys), _scales(values)) for keys, values in cache.layers]


def _scales(cache: torch.Tensor) -> torch.Tensor:
    """float32 [kv_heads]; 1 for a head of zeros, or of what is no number."""
    largest = cache.float().abs().amax(dim=(0, 2, 3)) * ROOM / FP8_LARGEST
    return torch.where((largest > 0) & largest.isfinite(), torch.exp2(torch.log2(largest).ceil()), 1.0)
