"""The KV pool's size from what a device reports, and the lines that say it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from local_engine.device_memory import GIB, DeviceMemory, full_batch, memory_lines, pool_bytes
from local_engine.planner.plan import GRAPH_BYTES_PER_LAYER

H200 = DeviceMemory(total=140 * GIB, free=119 * GIB, reserved=18 * GIB, peak=20 * GIB)


def test_the_pool_is_what_a_full_step_others_and_graphs_leave_of_the_share() -> None:
    assert H200.others == 3 * GIB
    assert pool_bytes(H200, 0.9, 32, eager=True) == 126 * GIB - 3 * GIB - 20 * GIB
    assert pool_bytes(H200, 0.9, 32, eager=False) == 103 * GIB - 32 * GRAPH_BYTES_PER_LAYER
    assert pool_bytes(H200, 0.1, 32, eager=True) == 0


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
