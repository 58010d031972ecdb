"""Every provider's stream behind every caller's dialect: however it is cut into reads, the same events, the right usage and
bounded memory; however it is damaged, a clean error or an answer, never a mistake of our own.
"""

from __future__ import annotations

import json
import re
import tracemalloc
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.usage import Usage
from gateway.api.chat import ChatCompletions
from gateway.api.messages import Messages
from gateway.api.responses import Responses
from gateway.api.surface import Surface
from gateway.routing.provider import ADAPTERS
from gateway.sse import MAX_EVENT_BYTES, StreamBroken
from gateway.upstream.events import Scanner
from tests.scripted_anthropic import AnthropicAnswers
from tests.scripted_gemini import GeminiAnswers
from tests.upstream_server import Script, Stream

SURFACES: dict[str, Surface] = {"chat": ChatCompletions(), "messages": Messages(), "responses": Responses()}
PAIRS = [(kind, surface) for kind in sorted(ADAPTERS) for surface in SURFACES]
NEWLINES = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
RANDOM = re.compile(rb"(resp|msg|rs|fc|call|chatcmpl)_?-?[0-9a-f]{16,}")
"""Ids that a writer makes up."""
TIMES = re.compile(rb'"created(_at)?":\d+')

TEXTS = st.text(st.characters(exclude_characters="=;[]\\\r\n", exclude_categories=("Cs", "Cc")), max_size=8)
SCRIPTS = st.fixed_dictionaries(
    {
        "chunks": st.integers(1, 6),
        "text": TEXTS,
        "tools": st.integers(0, 3),
        "output": st.integers(0, 10**6),
        "prompt": st.integers(0, 10**6),
        "newline": st.sampled_from(sorted(NEWLINES)),
        "usage": st.sampled_from(["final", "finish", "every", "choice", "groq"]),
        "comment": st.integers(0, 1),
        "space": st.integers(0, 1),
        "ping": st.integers(0, 1),
        "placeholder": st.integers(0, 1),
    },
    optional={"thought": TEXTS.filter(bool), "cached": st.integers(0, 9)},
)


@dataclass
class Heard:
    """What came out of one scanner."""

    said: bytes
    usage: Usage | None
    ending: bytes
    whole: bool


def scanner_of(kind: str, surface: str) -> tuple[Scanner, Any]:
    body: dict[str, Any] = {"model": "m", "stream": True, "max_tokens": 10**6}
    body |= {"input": "hi"} if surface == "responses" else {"messages": [{"role": "user", "content": "hi"}]}
    if surface == "chat":
        body["stream_options"] = {"include_usage": True}
    if surface == "responses":
        del body["max_tokens"]
    call = SURFACES[surface].read(json.dumps(body).encode())
    adapter = ADAPTERS[kind] if call.over is None else call.over(ADAPTERS[kind])
    return adapter.scanner(call), adapter


def stream_of(kind: str, values: dict[str, Any]) -> bytes:
    script = Script({name: str(value) for name, value in values.items()})
    script.values["input"] = str(values.get("prompt", 9))
    newline = NEWLINES[script.text("newline", "lf")]
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    if kind == "anthropic":
        events = AnthropicAnswers(script, body, "/v1/messages").events()
    elif kind == "gemini":
        events = GeminiAnswers(script, body, "/m:streamGenerateContent").events()
    else:
        events = [*Stream(script, body, "/chat/completions").events(), b"data: [DONE]"]
    return b"".join(event.replace(b"\n", newline) + newline * 2 for event in events)


def hear(kind: str, surface: str, reads: list[bytes]) -> Heard:
    """Raises `StreamBroken`."""
    scanner, adapter = scanner_of(kind, surface)
    said = b"".join(scanner.feed(read) for read in reads) + scanner.end()
    usage = None if scanner.usage is None else adapter.usage(scanner.usage)
    whole = scanner.error is None and (scanner.done or (scanner.finished and not scanner.truncated))
    ending = scanner.ending(usage or Usage(), "1 USD", wanted=True) if whole else b""
    return Heard(said, usage, ending, whole)


def events(block: bytes) -> list[bytes]:
    plain = TIMES.sub(b'"created":0', RANDOM.sub(b"id", block)).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found = (each.lstrip(b"\n") for each in plain.split(b"\n\n"))  # an empty line more ends no event
    return [each for each in found if each and not each.startswith(b":")]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    return [stream[start:end] for start, end in pairwise(bounds)]


@pytest.mark.parametrize(("kind", "surface"), PAIRS)
@settings(max_examples=25)
@given(values=SCRIPTS, places=st.lists(st.integers(0, 1 << 30), max_size=40), one_by_one=st.booleans())
def test_rule_18_any_cut_gives_the_same_events_and_the_right_usage(
    kind: str, surface: str, values: dict[str, Any], places: list[int], one_by_one: bool
) -> None:
    stream = stream_of(kind, values)
    at_once = hear(kind, surface, [stream])
    reads = [stream[at : at + 1] for at in range(len(stream))] if one_by_one else cut(stream, places)
    in_pieces = hear(kind, surface, reads)
    assert at_once.whole and in_pieces.whole
    assert events(in_pieces.said) == events(at_once.said)
    assert events(in_pieces.ending) == events(at_once.ending)
    assert in_pieces.usage == at_once.usage
    usage = at_once.usage
    assert usage is not None and usage.total_output == values["output"]
    told = (at_once.said + at_once.ending).decode()
    for number in range(values["tools"]):
        assert f"tool_{number}" in told


@pytest.mark.parametrize(("kind", "surface"), PAIRS)
@settings(max_examples=25)
@given(
    values=SCRIPTS,
    harm=st.lists(
        st.tuples(st.sampled_from(["flip", "drop", "insert", "end"]), st.integers(0, 1 << 30), st.binary(max_size=12)),
        min_size=1,
        max_size=4,
    ),
    places=st.lists(st.integers(0, 1 << 30), max_size=10),
)
def test_a_damaged_stream_ends_in_a_clean_error_or_an_answer(
    kind: str, surface: str, values: dict[str, Any], harm: list[tuple[str, int, bytes]], places: list[int]
) -> None:
    stream = bytearray(stream_of(kind, values))
    for what, place, junk in harm:
        at = place % (len(stream) + 1)
        if what == "flip":
            stream[at : at + 1] = bytes([place % 256])
        elif what == "drop":
            del stream[at : at + 1 + place % 50]
        elif what == "insert":
            stream[at:at] = junk
        else:
            del stream[at:]
    try:
        heard = hear(kind, surface, cut(bytes(stream), places))
    except StreamBroken:
        return
    assert heard.usage is None or heard.usage.total >= 0
    assert heard.whole == bool(heard.ending)


@pytest.mark.parametrize(("kind", "surface"), PAIRS)
@given(junk=st.binary(max_size=400), places=st.lists(st.integers(0, 400), max_size=8))
@settings(max_examples=40)
def test_noise_is_no_answer(kind: str, surface: str, junk: bytes, places: list[int]) -> None:
    try:
        heard = hear(kind, surface, cut(b"data: " + junk + b"\n\n", places))
    except StreamBroken:
        return
    assert not heard.whole or b"[DONE]" in junk


@pytest.mark.parametrize(("kind", "surface"), PAIRS)
def test_rule_22_a_long_stream_takes_bounded_memory(kind: str, surface: str) -> None:
    """Three thousand chunks, of which nothing is kept but what the end has to repeat: a response's own text."""
    chunks = 3000
    stream = stream_of(kind, {"chunks": chunks, "text": "fox ", "output": chunks, "prompt": 1})
    reads = [stream[at : at + 4096] for at in range(0, len(stream), 4096)]
    scanner, _ = scanner_of(kind, surface)
    for read in reads[:8]:
        scanner.feed(read)
    tracemalloc.start()
    try:
        for read in reads[8:]:
            scanner.feed(read)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    most = 600_000 if surface == "responses" else 150_000
    assert held < most, f"{held} bytes are held after {len(stream)}"


@pytest.mark.parametrize(("kind", "surface"), PAIRS)
def test_an_event_without_an_end_is_given_up_before_it_fills_the_memory(kind: str, surface: str) -> None:
    scanner, _ = scanner_of(kind, surface)
    piece = b"x" * (1 << 20)
    scanner.feed(b"data: ")
    pieces = [piece] * (2 * MAX_EVENT_BYTES // len(piece))
    with pytest.raises(StreamBroken):
        list(map(scanner.feed, pieces))
