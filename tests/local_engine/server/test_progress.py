from __future__ import annotations

import pytest

from local_engine.server.run import _Sparing


def test_news_comes_at_once_and_one_progress_is_told_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [10.0]
    monkeypatch.setattr("local_engine.server.run.time.monotonic", lambda: now_s[0])
    told: list[str] = []
    tell = _Sparing(told.append)
    tell("opening the weights")
    tell("compiling the kernels")
    for layer in range(1, 5):
        tell(f"layer {layer} of 30")
        now_s[0] += 0.4
    tell("ready")
    assert told == ["opening the weights", "compiling the kernels", "layer 1 of 30", "layer 4 of 30", "ready"]
