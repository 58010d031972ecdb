from __future__ import annotations

import time

import pytest

from local_engine.remembered import Remembered


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its one element is the time."""
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    return now_s


def test_a_value_is_known_until_its_time_is_over(clock: list[float]) -> None:
    known: Remembered[str] = Remembered(kept_s=5, most=10)
    known.put("a", "first")
    clock[0] += 4.9
    assert (known.get("a"), known.get("b")) == ("first", None)
    clock[0] += 0.1
    assert (known.get("a"), len(known)) == (None, 0)


def test_put_again_it_is_known_anew(clock: list[float]) -> None:
    known: Remembered[str] = Remembered(kept_s=5, most=10)
    known.put("a", "first")
    known.put("b", "other")
    clock[0] += 3
    known.put("a", "second")
    clock[0] += 3
    assert (known.get("a"), known.get("b")) == ("second", None)


def test_beyond_the_most_the_oldest_is_forgotten() -> None:
    known: Remembered[int] = Remembered(kept_s=600, most=3)
    for number in range(5):
        known.put(str(number), number)
    assert [known.get(str(number)) for number in range(5)] == [None, None, 2, 3, 4]
    assert len(known) == 3


def test_what_is_taken_is_known_no_longer() -> None:
    known: Remembered[int] = Remembered(kept_s=600, most=3)
    known.put("a", 1)
    assert (known.take("a"), known.take("a"), known.get("a")) == (1, None, None)
