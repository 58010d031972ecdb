from __future__ import annotations

from local_engine.heartbeat import BEAT_EVERY_S, SILENT_AFTER_S, STEP_LIMIT_S, CoreWatch


def ticks(watch: CoreWatch, seconds: float) -> None:
    for _ in range(round(seconds / BEAT_EVERY_S)):
        watch.tick()


def test_silence_is_trouble_after_seconds_and_loss_after_the_timeout() -> None:
    watch = CoreWatch(20)
    ticks(watch, SILENT_AFTER_S - BEAT_EVERY_S)
    assert (watch.trouble, watch.lost) == (None, None)
    ticks(watch, BEAT_EVERY_S)
    assert watch.trouble == "The engine core has not answered for 4 s."
    assert watch.lost is None
    ticks(watch, 20 - SILENT_AFTER_S)
    assert watch.lost == "The engine core has not answered for 20 s (--core-timeout-seconds) and was ended."


def test_a_single_beat_ends_the_trouble() -> None:
    watch = CoreWatch(20)
    ticks(watch, 19)
    watch.heard(step_ms=5)
    watch.tick()
    assert (watch.trouble, watch.lost) == (None, None)


def test_a_long_step_is_no_trouble_and_an_endless_one_is_a_loss() -> None:
    watch = CoreWatch(20)
    watch.heard(step_ms=60_000)
    assert (watch.trouble, watch.lost) == (None, None)
    watch.heard(step_ms=int(STEP_LIMIT_S * 1_000))
    assert watch.lost == "The engine core was ended: one step had taken 600 s."
