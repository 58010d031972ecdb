"""What the GPU's bench measures, and with which clock: on a device, or dry, where every line runs once on tiny shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from local_engine.models.config import ModelConfig

LLAMA_8B = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, layers=32,
    heads=32, kv_heads=8, head_dim=128, rms_norm_eps=1e-5, rope={"rope_theta": 500_000.0},
    max_position_embeddings=8192, tie_word_embeddings=False, dtype="bfloat16",
)  # fmt: skip
TINY = replace(
    LLAMA_8B, vocab_size=48, hidden_size=32, intermediate_size=32, layers=1, heads=2, kv_heads=1, head_dim=16,
    max_position_embeddings=64, dtype="float32",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """Pairs are (sequences, tokens). `copied`: values of the copy; `square`: of the matrix product."""

    device: torch.device
    dtype: torch.dtype
    model: ModelConfig
    copied: int
    square: int
    decodes: tuple[tuple[int, int], ...]
    prefills: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    """Of the products with packed weights."""
    context: int
    """Tokens that each of the engine's sequences has when its decode step is timed."""
    sequences: tuple[int, ...]
    steps: int
    """Of the engine, timed together."""
    repeats: int
    group: int
    """Inputs to a group of 4-bit weights."""

    @property
    def dry(self) -> bool:
        return self.device.type != "cuda"

    def wait(self) -> None:
        if not self.dry:
            torch.cuda.synchronize(self.device)

    def seconds(self, run: Callable[[], object]) -> float:
        """Median of `repeats` runs on the device's own clock, each after its cache was overwritten, after three uncounted."""
        if self.dry:
            began = time.perf_counter()
            run()
            return time.perf_counter() - began
        flushed = torch.empty(1 << 28, dtype=torch.uint8, device=self.device)
        times: list[float] = []
        for _ in range(3 + self.repeats):
            flushed.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(float(begin.elapsed_time(end)) / 1e3)
        return statistics.median(times[3:])


def on_device(device: torch.device) -> Setting:
    return Setting(
        device, torch.bfloat16, LLAMA_8B, copied=1 << 30, square=8192,
        decodes=((1, 8192), (1, 65_536), (16, 8192), (64, 8192), (256, 1024)),
        prefills=((1, 2048), (1, 8192), (8, 2048)),
        rows=(1, 16, 64, 256, 2048), context=1024, sequences=(1, 16, 64, 256), steps=16, repeats=20, group=128,
    )  # fmt: skip


def dry() -> Setting:
    return Setting(
        torch.device("cpu"), torch.float32, TINY, copied=1 << 10, square=16, decodes=((1, 20), (2, 17)), prefills=((1, 18),),
        rows=(1, 3), context=16, sequences=(2,), steps=1, repeats=1, group=32,
    )  # fmt: skip
