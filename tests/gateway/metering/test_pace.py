"""Transactions shrink where they take long and grow where they do not."""

from __future__ import annotations

from gateway.metering.pace import FEWEST_ROWS, MOST_ROWS, Pace


def test_a_long_transaction_halves_the_next_and_short_ones_double_it_again() -> None:
    pace = Pace()
    pace.took(pace.rows, 0.3)
    assert pace.rows == MOST_ROWS // 2
    pace.took(pace.rows, 0.06)
    assert pace.rows == MOST_ROWS // 2
    pace.took(pace.rows, 0.01)
    assert pace.rows == MOST_ROWS


def test_it_stays_within_its_bounds() -> None:
    pace = Pace()
    for _ in range(20):
        pace.took(pace.rows, 5.0)
    assert pace.rows == FEWEST_ROWS
    pace.took(1, 0.001)
    for _ in range(20):
        pace.took(pace.rows, 0.0)
    assert pace.rows == MOST_ROWS


def test_a_few_rows_that_took_long_say_nothing_of_many() -> None:
    pace = Pace()
    pace.took(3, 5.0)
    assert pace.rows == MOST_ROWS
