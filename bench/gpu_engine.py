"""The engine's decode steps on random weights of a model's shape, so that nothing has to be downloaded; beside transformers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.gpu_setting import Setting
from kernels.batch import BLOCK
from kernels.fp8 import CacheScales
from kernels.linear import StoredWeight
from kernels.quantised_weight import Fp8Weight, Int4Weight, Weight
from kernels.triton.operations import TritonOperations
from local_engine.batch import ScheduledSequence
from local_engine.cuda_graphs import CudaGraphs
from local_engine.decode_step import DecodeStep
from local_engine.kv_cache import KVCache, allocate
from local_engine.models.config import ModelConfig
from local_engine.models.decoder import Decoder
from local_engine.models.family import Family
from local_engine.sampling_params import SamplingParams

FORMS = (("full", "full"), ("full", "fp8"), ("fp8", "full"), ("fp8", "fp8"), ("int4", "full"))
"""Weights and cache: `full` is the setting's own type."""


class RandomWeights:
    """Weights of a shape, made on the device as they are asked for, in the precision that is named."""

    stores_bfloat16 = True
    stored_as: str | None = None

    def __init__(self, setting: Setting, precision: str) -> None:
        self.config, self.precision = setting.model, f"random {precision}"
        self._setting, self._kind = setting, precision

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=self._setting.dtype, device=self._setting.device).normal_(std=0.02)

    def has(self, name: str) -> bool:
        return name.endswith(".weight")

    def matrix(self, name: str) -> Weight:
        config, device = self.config, self._setting.device
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        shapes = {
            "q_proj": (q, config.hidden_size), "k_proj": (kv, config.hidden_size), "v_proj": (kv, config.hidden_size),
            "o_proj": (config.hidden_size, q), "gate_proj": (config.intermediate_size, config.hidden_size),
            "up_proj": (config.intermediate_size, config.hidden_size),
            "down_proj": (config.hidden_size, config.intermediate_size), "lm_head": (config.vocab_size, config.hidden_size),
        }  # fmt: skip
        last = name.removesuffix(".weight").rsplit(".", 1)[-1]
        outputs, inputs = shape = shapes[last]
        if self._kind == "full" or last == "lm_head":
            return StoredWeight("bf16", shape, np.empty((0, 0), dtype=np.uint8), lambda: self._random(*shape))
        if self._kind == "fp8":
            scales = torch.full((outputs,), 0.02, device=device)
            return Fp8Weight((self._random(*shape) / 0.02).to(torch.float8_e4m3fn), scales)
        groups = inputs // self._setting.group
        words = (torch.randint(-(1 << 31), 1 << 31, (n, outputs // 8), device=device) for n in (inputs, groups))
        values, zeros = (each.to(torch.int32) for each in words)
        return Int4Weight(values, torch.full((groups, outputs), 0.004, dtype=self._setting.dtype, device=device), zeros)

    def vector(self, name: str) -> torch.Tensor:
        return torch.ones(self.config.hidden_size)

    def embedding(self, name: str) -> RandomEmbedding:
        return RandomEmbedding(self._random(self.config.vocab_size, self.config.hidden_size))

    def rotary_factors(self) -> torch.Tensor | None:
        return None


class RandomEmbedding:
    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._weight[ids.to(self._weight.device)]

    def on(self, device: torch.device, dtype: torch.dtype) -> RandomEmbedding:
        return RandomEmbedding(self._weight.to(device, dtype))


def weight_bytes(config: ModelConfig, precision: str, group: int, size: int) -> int:
    """That a decode step reads: the layers' matrices and the head."""
    per_layer = config.hidden_size * (
        2 * (config.heads + config.kv_heads) * config.head_dim + 3 * config.intermediate_size
    )
    bits = {"full": 8 * size, "fp8": 8, "int4": 4 + (8 * size + 4) / group}[precision]
    return int(config.layers * per_layer * bits / 8) + size * config.vocab_size * config.hidden_size


def engine(setting: Setting, copy_bytes_per_s: float) -> dict[str, Any]:
    """Decode steps with and without CUDA graphs, and with each step launched before the tokens of the one before are known."""
    results: dict[str, Any] = {"weights": "random, of the model's shape", "context": setting.context}
    for weights in dict.fromkeys(weights for weights, _ in FORMS):
        model, operations = _model(setting, weights)
        for cache in (cache for own, cache in FORMS if own == weights):
            model.attach(_cache(setting, cache))
            results[f"{weights} weights, {cache} cache"] = _decode(
                setting, model, operations, weights, cache, copy_bytes_per_s
            )
        del model, operations
        if not setting.dry:
            torch.cuda.empty_cache()
    return results


def _model(setting: Setting, weights: str) -> tuple[Decoder, TritonOperations]:
    operations = TritonOperations(setting.device, setting.dtype, 2048)
    model = Decoder(
        RandomWeights(setting, weights), Family(), operations, max_context=setting.model.max_position_embeddings,
        device=setting.device, threads=1, progress=lambda text: None,
    )  # fmt: skip
    return model, operations


def _cache(setting: Setting, kind: str) -> KVCache:
    config, dtype = setting.model, torch.float8_e4m3fn if kind == "fp8" else setting.dtype
    cache = allocate(config, setting.sequences[-1] * _pages(setting), dtype, setting.device)
    one = torch.ones(config.kv_heads, device=setting.device)
    return KVCache(cache.layers, cache.num_blocks, [CacheScales(one, one)] * config.layers if kind == "fp8" else None)


def _pages(setting: Setting) -> int:
    """Of a sequence, with room for all steps."""
    return -(-(setting.context + 4 * setting.steps) // BLOCK)


def _batch(setting: Setting, sequences: int, position: int) -> list[ScheduledSequence]:
    params, pages = SamplingParams(temperature=0.0), _pages(setting)
    return [
        ScheduledSequence(
            number, [7], position, range(number * pages, (number + 1) * pages), True, params,
            output_position=position - setting.context + 1,
        )
        for number in range(sequences)
    ]  # fmt: skip


def _decode(
    setting: Setting, model: Decoder, operations: TritonOperations, weights: str, cache: str, copy_bytes_per_s: float
) -> dict[str, Any]:
    config, size = setting.model, setting.dtype.itemsize
    on_device = operations.draws_on_device
    assert on_device is not None
    step = DecodeStep(
        model, most=setting.sequences[-1], max_context=setting.context + 4 * setting.steps, device=setting.device,
        draw=operations.draw, draw_on_device=on_device,
    )  # fmt: skip
    graphs = CudaGraphs(step.compute, step.pad, setting.sequences, setting.device)
    kv_bytes = setting.context * 2 * config.kv_heads * config.head_dim * config.layers * (1 if cache == "fp8" else size)
    found: dict[str, Any] = {}
    with torch.inference_mode():
        eager = {n: _steps_seconds(setting, step, n, ahead=False) for n in setting.sequences}
        if not setting.dry:
            graphs.capture()
            step.run = graphs.run
        for sequences in setting.sequences:
            least = (weight_bytes(config, weights, setting.group, size) + sequences * kv_bytes) / copy_bytes_per_s
            took = {
                "eager": eager[sequences],
                "graphs": _steps_seconds(setting, step, sequences, ahead=False),
                "graphs, launched ahead": _steps_seconds(setting, step, sequences, ahead=True),
            }
            found[f"{sequences} sequences"] = {
                name: {"step_ms": each * 1e3, "tokens_per_s": sequences / each, "of_least_time": each / least}
                for name, each in took.items()
            }
    return found


def _steps_seconds(setting: Setting, step: DecodeStep, sequences: int, *, ahead: bool) -> float:
    """Seconds per step, what the host does included; the first half of the steps is not counted."""
    own, fed = [-1] * sequences, list(range(sequences))
    step.launch(_batch(setting, sequences, setting.context - 1), own).collect()
    began, flight = 0.0, None
    for number in range(2 * setting.steps):
        if number == setting.steps:
            setting.wait()
            began = time.perf_counter()
        following = step.launch(_batch(setting, sequences, setting.context + number), fed)
        if flight is not None:
            flight.collect()
        flight = following if ahead else None
        if not ahead:
            following.collect()
    setting.wait()
    return (time.perf_counter() - began) / setting.steps


def transformers_generate(setting: Setting) -> dict[str, Any] | None:
    """Tokens per second of transformers' generate in the same shape and process; None where it is not installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    config, device, steps = setting.model, setting.device, 2 * setting.steps
    shape = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        max_position_embeddings=config.max_position_embeddings, dtype=setting.dtype,
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(shape).to(setting.dtype).eval()
    generate: Callable[..., object] = model.generate
    results = {}
    for sequences in setting.sequences:
        prompt = torch.randint(0, config.vocab_size, (sequences, setting.context), device=device)
        times = []
        for tokens in (1, 1, 1 + steps):  # the first warms up; between the other two lie `steps` decode steps
            setting.wait()
            began = time.perf_counter()
            generate(prompt, min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
            setting.wait()
            times.append(time.perf_counter() - began)
        results[f"{sequences} sequences"] = {"tokens_per_s": steps * sequences / (times[2] - times[1])}
    return results
