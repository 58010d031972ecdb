"""A child that says nothing is killed, one that is only slow is not, and a block that ends leaves none behind."""

from __future__ import annotations

import os
import signal
import sys
import time

import msgspec
from msgspec import Struct

from gateway.child import SILENT_BEATS, START_BEATS, Silence, child
from tests.e2e.product import alive


class Ask(Struct, tag=True):
    """What the child answers."""


class Word(Struct, tag=True):
    number: int


READ = msgspec.msgpack.Decoder(Word)
TALKER = """
import socket, sys
import msgspec
with socket.socket(fileno=int(sys.argv[1])) as link:
    number = 0
    while heard := link.recv(4096):
        number += 1
        word = msgspec.msgpack.encode({"type": "Word", "number": number})
        link.sendall(len(word).to_bytes(4, "big") + word)
"""


def beats_until_too_long(silence: Silence, took_s: float = 5.0) -> int:
    return next(beat for beat in range(1, 1000) if silence.too_long(took_s, spoke=False))


def test_silence_is_counted_in_beats_and_a_child_that_starts_has_more_of_them() -> None:
    silence = Silence(5.0)
    assert beats_until_too_long(silence) == START_BEATS
    assert not silence.too_long(5.0, spoke=True)
    assert beats_until_too_long(silence) == SILENT_BEATS
    assert SILENT_BEATS * silence.beat_s == 30


def test_a_parent_that_slept_itself_counts_anew() -> None:
    silence = Silence(5.0)
    silence.too_long(5.0, spoke=True)
    for _ in range(10 * SILENT_BEATS):
        for _ in range(SILENT_BEATS - 1):
            assert not silence.too_long(5.1, spoke=False)
        assert not silence.too_long(3600.0, spoke=False), "the machine was suspended, and its child with it"
    assert beats_until_too_long(silence) == SILENT_BEATS


async def test_a_child_that_stands_still_is_killed_and_one_that_answers_lives() -> None:
    async with child("the talker", [sys.executable, "-c", TALKER], READ, Ask(), beat_s=0.1) as talker:
        words = talker.news()
        begun_s = time.monotonic()
        while (await anext(words)).number < 2 * SILENT_BEATS:
            pass
        assert time.monotonic() - begun_s > SILENT_BEATS * 0.1, "it spoke for longer than it might have been silent"
        os.kill(talker.pid, signal.SIGSTOP)
        assert [word async for word in words][3:] == [], "what was under way, and nothing more"
        assert await talker.ended() == -signal.SIGKILL


async def test_what_runs_when_the_block_ends_is_killed() -> None:
    async with child("the talker", [sys.executable, "-c", TALKER], READ, Ask()) as talker:
        talker.link.send(Ask())
        assert (await anext(talker.news())).number == 1
        assert alive(talker.pid)
    assert not alive(talker.pid)
