"""Steps launched before the tokens of the one before are known: the same output, whoever ends, leaves or arrives meanwhile."""

from __future__ import annotations

from local_engine.messages import Abort
from local_engine.sequence import FinishReason

from .test_engine_core import Harness
from .tiny import NAN_TOKEN, oracle_output, oracle_token


def ahead(**config: object) -> Harness:
    return Harness(ahead=True, **config)  # type: ignore[arg-type]


def fed(harness: Harness) -> int:
    assert harness.runner.launcher is not None
    return harness.runner.launcher.fed


def test_all_but_the_first_step_are_launched_ahead_and_none_beyond_the_last() -> None:
    harness = ahead()
    harness.add(1, [1, 2, 3], max_tokens=10)
    harness.add(2, [3], max_tokens=10)
    harness.finish()
    # Steps: the prompts, which are not launched; one with tokens of its own; eight that were fed, for both.
    assert fed(harness) == 2 * 8 and harness.core.stats().steps == 10
    assert harness.runner.computed_tokens == 4 + 2 * 9
    assert [harness.ended[id].tokens for id in (1, 2)] == [oracle_output([1, 2, 3], 10), oracle_output([3], 10)]


def test_a_sequence_that_ends_by_its_token_leaves_a_row_that_nobody_reads() -> None:
    harness, stop = ahead(), oracle_output([5], 4)[3]
    harness.add(1, [5], max_tokens=30, stop_token_ids=(stop,), seed=1)
    harness.add(2, [6], max_tokens=12)
    harness.finish()
    assert harness.ended[1].tokens == oracle_output([5], 4) and harness.ended[1].reason is FinishReason.STOP
    assert harness.ended[2].tokens == oracle_output([6], 12)
    assert harness.runner.computed_tokens == 1 + 1 + 3 + 11 + 1  # the last one in vain


def test_pages_of_one_who_leaves_in_flight_serve_the_next() -> None:
    harness = ahead(num_blocks=8)
    harness.add(1, [7] * 40, max_tokens=80)
    for _ in range(4):
        harness.step()
    harness.core.handle(Abort(1, None))
    harness.add(2, [8] * 20, max_tokens=100)
    harness.finish()
    assert harness.ended[1].reason is FinishReason.ABORT
    assert harness.ended[2].tokens == oracle_output([8] * 20, 100)


def test_who_arrives_in_flight_waits_for_one_step_at_most() -> None:
    harness = ahead()
    harness.add(1, [7], max_tokens=40)
    for _ in range(5):
        harness.step()
    harness.add(2, [8], max_tokens=3)
    harness.step()  # the one that was flying already
    assert any(update.id == 2 for update in harness.step())
    harness.finish()
    assert harness.ended[2].tokens == oracle_output([8], 3)


def test_who_waits_for_a_seat_does_not_stop_the_others_from_running_ahead() -> None:
    harness = ahead(max_num_seqs=1)
    for id in range(3):
        harness.add(id, [id], max_tokens=10)
    harness.finish()
    assert fed(harness) == 3 * 9  # a prompt of one token is launched too
    assert all(harness.ended[id].tokens == oracle_output([id], 10) for id in range(3))


def test_a_row_of_nan_fails_alone_while_its_next_step_flies() -> None:
    harness = ahead()
    harness.add(1, [7], max_tokens=10)
    harness.add(2, [NAN_TOKEN, 3], max_tokens=10)
    harness.finish()
    assert harness.ended[2].reason is FinishReason.ERROR
    assert harness.ended[1].tokens[0] == oracle_token([7]) and harness.ended[1].tokens == oracle_output([7], 10)
