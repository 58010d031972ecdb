from __future__ import annotations

from local_engine.step_budget import StepBudget


def test_without_a_target_the_budget_is_fixed() -> None:
    budget = StepBudget(2048, 0)
    budget.observe(2048, 10_000_000)
    assert budget.for_step(10) == 2048


def test_a_slow_full_step_shrinks_it_towards_the_target() -> None:
    budget = StepBudget(2048, 100_000)
    assert budget.for_step(0) == 256
    budget.observe(256, 160_000)
    assert budget.for_step(0) == 160


def test_a_quick_full_step_lets_it_grow_up_to_the_limit() -> None:
    budget = StepBudget(300, 100_000)
    budget.observe(256, 20_000)
    assert budget.for_step(0) == 300


def test_a_step_that_was_not_full_says_nothing() -> None:
    budget = StepBudget(2048, 100_000)
    budget.observe(8, 900_000)
    assert budget.for_step(0) == 256


def test_every_running_sequence_can_decode_however_slow_it_is() -> None:
    budget = StepBudget(2048, 100_000)
    for _ in range(10):
        budget.observe(budget.tokens, 10_000_000)
    assert budget.tokens == 32
    assert budget.for_step(64) == 65
