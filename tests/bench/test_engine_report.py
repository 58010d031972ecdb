from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from bench.engine_load import Point
from bench.engine_report import OF_BOUND, engines_table, losses_table, render, standings, standings_table
from bench.engine_roofline import Machine, bound, smollm2
from local_engine.weights.gguf import read_gguf
from local_engine.weights.model_store import resolve_model

MACHINE = Machine(read_gb_per_s=20.0, float32_gflop_per_s=100.0, bfloat16_gflop_per_s=400.0, int8_gop_per_s=800.0)
SHORT = Point("short-8", 8, 32)
SHARED = Point("shared-32", 32, 1016, shared_tokens=1000)


def report(**per_s: list[float]) -> dict[str, object]:
    engines = {
        name.replace("_", " "): {
            "bits": 16,
            "memory_mb": 100,
            "ready_s": 1.0,
            "failed": None,
            "points": {"short-8": {"tokens_per_s": values, "first_p50_ms": [5.0] * len(values)}} if values else {},
        }
        for name, values in per_s.items()
    }
    return {"rooflines": {"16": asdict(MACHINE)}, "points": [asdict(SHORT)], "engines": engines}


def test_the_weights_of_the_bound_are_those_of_the_bundled_file() -> None:
    matrices = [
        tensor
        for tensor in read_gguf(resolve_model("smollm2-135m-instruct")).tensors.values()
        if len(tensor.shape) == 2
    ]
    shape = smollm2(4)
    assert shape.linear_weights + shape.head_weights == sum(
        rows * columns for rows, columns in (m.shape for m in matrices)
    )
    assert shape.linear_bytes + shape.head_bytes == sum(matrix.data.nbytes for matrix in matrices)


def test_one_caller_in_bfloat16_is_bound_by_reading_the_weights_and_its_context() -> None:
    shape = smollm2(16)
    found = bound(Point("short-1", 1, 32), shape, MACHINE, 16)
    assert found.bytes_per_step == 2 * (shape.linear_weights + shape.head_weights) + 96 * shape.cache_bytes_per_token
    assert found.decode_s == pytest.approx(127 * found.bytes_per_step / 20e9)
    assert found.tokens_per_s == pytest.approx(128 / (found.prefill_s + found.decode_s))


def test_many_callers_are_bound_by_multiplying() -> None:
    found = bound(Point("p", 256, 32), smollm2(16), MACHINE, 16)
    assert found.decode_s == pytest.approx(127 * found.ops_per_step / 400e9)


def test_a_machine_twice_as_fast_allows_twice_as_much() -> None:
    doubled = Machine(*(2 * getattr(MACHINE, name) for name in Machine.__slots__))
    for point in (SHORT, SHARED, Point("long-32", 32, 512)):
        for bits in (16, 8, 4):
            before, after = (bound(point, smollm2(bits), each, bits).tokens_per_s for each in (MACHINE, doubled))
            assert after == pytest.approx(2 * before)


def test_a_shared_prefix_is_read_once_and_not_computed_again() -> None:
    apart = replace(SHARED, shared_tokens=0)
    shape = smollm2(16)
    together, alone = bound(SHARED, shape, MACHINE, 16), bound(apart, shape, MACHINE, 16)
    assert alone.bytes_per_step - together.bytes_per_step == 31 * 1000 * shape.cache_bytes_per_token
    assert alone.ops_per_step == together.ops_per_step
    assert together.prefill_s < alone.prefill_s / 10


def test_ours_is_set_beside_the_best_peer_of_the_same_bits() -> None:
    (row,) = standings(report(metergate_bf16=[99, 130, 100], slow=[50, 60, 40], quick=[80, 90, 70], absent=[]), 16)
    assert (row.ours, row.best, row.best_per_s, row.ratio) == (100, "quick", 80, 1.25)
    assert row.goal_per_s == min(1.3 * 80, OF_BOUND * row.bound.tokens_per_s)


@pytest.mark.parametrize(("ours", "word"), [(104.0, "goal"), (78.0, "floor"), (77.0, "no")])
def test_the_floor_is_level_with_the_peer_and_the_goal_above_it(ours: float, word: str) -> None:
    rows = list(standings(report(metergate_bf16=[ours], quick=[80]), 16))
    assert standings_table(rows)[-1].endswith(f"| {word} |")


def test_without_a_peer_there_is_no_ratio_and_without_ours_no_row() -> None:
    (alone,) = standings(report(metergate_bf16=[100]), 16)
    assert (alone.best, alone.ratio) == (None, None)
    assert list(standings(report(quick=[80]), 16)) == []
    assert list(standings(report(metergate_bf16=[], quick=[80]), 16)) == []


def test_what_failed_is_said_and_what_was_not_measured_is_a_dash() -> None:
    taken = report(metergate_bf16=[100], quick=[])
    engines = taken["engines"]
    assert isinstance(engines, dict)
    engines["quick"]["failed"] = "FileNotFoundError: quick is not installed\nmore"
    machine = {"cpu": "c", "cores": 2, "load": 0.0, "python": "3.11", "commit": "abc", "date": "2026-01-01"}
    page = render(taken | {"machine": machine, "rounds": 1})
    assert engines_table(taken, 16)[-1] == "| quick | - | 100 | 1.0 |"
    assert "quick has no figures: FileNotFoundError: quick is not installed" in page
    assert "more" not in page


def test_a_step_takes_what_the_answers_took_after_the_prompt() -> None:
    taken = report(metergate_bf16=[100])
    rows = list(standings(taken, 16))
    answers_ms = 8 * 128 / 100 * 1000
    assert losses_table(rows)[-1].startswith(f"| short-8 | 5 | {(answers_ms - 5) / 127:.1f} |")
