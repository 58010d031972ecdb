"""The KV pool's size from what a device reports, and the lines that say it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.sampling import DrawSettings
from local_engine.config import EngineConfig
from local_engine.device_memory import GIB, DeviceMemory, full_batch, memory_lines, peak_of, pool_bytes
from local_engine.planner.plan import GRAPH_BYTES_PER_LAYER
from local_engine.runner import ModelRunner

from .models.tiny_llama import save_tiny_llama

H200 = DeviceMemory(total=140 * GIB, free=119 * GIB, reserved=18 * GIB, peak=20 * GIB)


def test_the_pool_is_what_a_full_step_others_and_graphs_leave_of_the_share() -> None:
    assert H200.others == 3 * GIB
    assert pool_bytes(H200, 0.9, 32, eager=True) == 126 * GIB - 3 * GIB - 20 * GIB
    assert pool_bytes(H200, 0.9, 32, eager=False) == 103 * GIB - 32 * GRAPH_BYTES_PER_LAYER
    assert pool_bytes(H200, 0.1, 32, eager=True) == 0


def test_the_device_is_read_after_the_step_and_without_what_torch_keeps_for_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    def answer(name: str, value: object, *device: object) -> object:
        said.append(name)
        return value

    for name, value in {
        "reset_peak_memory_stats": None, "synchronize": None, "empty_cache": None, "mem_get_info": (5, 9),
        "memory_reserved": 2, "max_memory_allocated": 3,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, partial(answer, name, value))
    memory = peak_of(lambda: said.append("step"), torch.device("cuda"))
    assert memory == DeviceMemory(total=9, free=5, reserved=2, peak=3) and memory.others == 2
    assert said[:4] == ["reset_peak_memory_stats", "step", "synchronize", "empty_cache"]


def test_the_measured_step_runs(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    config = EngineConfig(
        str(tmp_path), device="cpu", kernels="torch", num_blocks_override=2, max_num_batched_tokens=40, max_num_seqs=3
    )
    runner, drawn = ModelRunner(config), list[int]()
    draw = runner._draw

    def noted(logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        drawn.append(len(logits))
        return draw(logits, settings)

    runner._draw = noted
    runner._full_step(full_batch(40, 3, runner.max_model_len))
    assert drawn == [3]


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_pool_peak_and_others_never_exceed_the_share(others: int, reserved: int, peak: int) -> None:
    memory = DeviceMemory(
        total=256 * GIB, free=(256 - others - reserved) * GIB, reserved=reserved * GIB, peak=peak * GIB
    )
    pool = pool_bytes(memory, 0.5, 0, eager=True)
    assert pool + (others + peak) * GIB == 128 * GIB or (pool == 0 and others + peak >= 128)


@given(tokens=st.integers(1, 4096), sequences=st.integers(1, 300), longest=st.integers(1, 4096))
def test_the_measured_step_is_as_large_as_any_and_reads_only_page_0(tokens: int, sequences: int, longest: int) -> None:
    batch = full_batch(tokens, sequences, longest)
    assert len(batch) == min(sequences, tokens)
    counts = [len(each.token_ids) for each in batch]
    assert sum(counts) <= tokens and max(counts) <= longest
    assert sum(counts) > tokens - len(batch) or max(counts) == longest
    assert all(set(each.block_table) == {0} and len(each.block_table) * 16 >= len(each.token_ids) for each in batch)


def test_the_start_says_what_vllms_users_look_for() -> None:
    assert memory_lines("cuda", 10_000, 2 << 20, 8192, None) == (
        "Available KV cache memory: 19.53 GiB",
        "GPU KV cache size: 160,000 tokens",
        "Maximum concurrency for 8,192 tokens per request: 19.53x",
    )
    assert memory_lines("cpu", 66, 1 << 20, 512, 500)[1:] == (
        "CPU KV cache size: 1,056 tokens",
        "Maximum concurrency for 512 tokens per request: 2.06x",
    )
    assert memory_lines("cuda:1", 66, 1 << 20, 8192, 512)[2].endswith(": 2.00x")  # of a window, 33 pages
