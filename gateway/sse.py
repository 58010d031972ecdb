"""Server-sent events of the OpenAI dialect, moved in whole reads.

A read is forwarded as it came unless its bytes can hold something that matters: a usage object, an error, or `[DONE]`. Only
then is it taken apart event by event, and only the events that hold such a thing are parsed; all others keep their bytes.
JSON escapes every quote inside a string, so `"usage"` can stand in a read only as a key (or as a whole string value, which
the parse then tells apart).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Raw

from billing.usage import Usage
from gateway import tokens
from gateway.spoken import Gauge
from gateway.upstream.shapes import Chunk, Head, given
from gateway.upstream.usage import ENGINE_TIME, to_openai

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
MAX_EVENT_BYTES: Final = 16 << 20
FINISH_WITHIN: Final = 4096

_BOUNDARY: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_ERROR: Final = re.compile(rb'"error"\s*:\s*[{"]')


class StreamBroken(Exception):
    """The upstream's stream cannot be read on: an event too large, or one that is no JSON. The message is for the log."""


_event = msgspec.json.Decoder(Chunk)
_head = msgspec.json.Decoder(Head)
_fields = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.Encoder().encode


def payload_of(event: bytes) -> bytes:
    """The data of one event: its `data:` lines joined by newlines, without the optional space; comments are skipped."""
    lines = event.splitlines()
    data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
    return data[0] if len(data) == 1 else b"\n".join(data)


def last_boundary(data: bytes | bytearray, start: int = 0) -> int:
    """The offset behind the last event end (an empty line) at or after `start`, or 0 when there is none."""
    if b"\r" not in data:
        return data.rfind(b"\n\n", start) + 2 if data.rfind(b"\n\n", start) >= 0 else 0
    end = 0
    for match in _BOUNDARY.finditer(data, start):
        end = match.end()
    return end


def _next_mark(block: bytes, at: int) -> int:
    """Where, at or behind `at`, an event may hold usage, an error or `[DONE]`; -1 when none can.

    `find` is memmem, some gigabytes a second; the slower patterns run only where the word stands at all.
    """
    nearest = block.find(b"[DONE]", at)
    for word, pattern in ((b'"usage"', _USAGE), (b'"error"', _ERROR)):
        first = block.find(word, at)
        if first >= 0 and (found := pattern.search(block, first)) is not None:
            nearest = found.start() if nearest < 0 else min(nearest, found.start())
    return nearest


def _event_around(block: bytes, at: int, mark: int) -> tuple[int, int]:
    """The bounds of the event with `mark` in it; `at` is the end of an event before it. Blocks end with an event's end."""
    if b"\r" not in block:
        before = block.rfind(b"\n\n", at, mark)
        return (before + 2 if before >= 0 else at), block.index(b"\n\n", mark) + 2
    start = at
    for match in _BOUNDARY.finditer(block, at):
        if match.end() > mark:
            return start, match.end()
        start = match.end()
    return start, len(block)


class StreamScanner:
    """One upstream stream on its way to one caller.

    `feed` takes a read and returns the bytes to send on; the usage chunk, `[DONE]` and everything behind it are held back, so
    that the request can be settled before its last byte. Afterwards: `usage` is the last usage object seen (raw JSON),
    `error` an in-band error, `done` says that the provider finished properly or failed in-band, `finished` that every choice
    had its finish reason. With `strip_usage` a usage object on a chunk with choices is taken out of that chunk.
    """

    __slots__ = (
        "_carry", "_choices", "_finishes", "_first", "_gauge", "_strip", "_usage_event", "done", "error",
        "service_tier", "size", "tail", "truncated", "usage",
    )  # fmt: skip

    def __init__(self, *, strip_usage: bool, choices: int = 1) -> None:
        self._strip = strip_usage
        self._choices = choices
        self._carry = bytearray()
        self._finishes = 0
        self._first: bytes | None = None
        self._gauge = Gauge()
        self._usage_event: bytes | None = None
        self.usage: bytes | None = None
        self.service_tier: str | None = None
        self.error: bytes | None = None
        self.tail = b""
        """Bytes that go out together with what ends the stream."""
        self.done = False
        self.truncated = False
        self.size = 0

    @property
    def finished(self) -> bool:
        return self._finishes >= self._choices

    def feed(self, read: bytes) -> bytes:
        """Raises `StreamBroken`. May return nothing while an event is still incomplete."""
        if self.done:
            return b""
        if not self._carry:
            if read.endswith(b"\n\n"):
                return self._block(read)
            cut = last_boundary(read)
            self._carry += read[cut:]
            return self._block(read[:cut]) if cut else b""
        carry = self._carry
        start = max(0, len(carry) - 3)
        carry += read
        cut = last_boundary(carry, start)
        if not cut:
            if len(carry) > MAX_EVENT_BYTES:
                raise StreamBroken(f"an event of more than {MAX_EVENT_BYTES} bytes")
            return b""
        block = bytes(carry[:cut])
        del carry[:cut]
        return self._block(block)

    def end(self) -> bytes:
        """The upstream closed: an unterminated last event counts if it is whole, and is dropped if it was cut."""
        rest = bytes(self._carry)
        self._carry.clear()
        if self.done or not rest.strip():
            return b""
        data = payload_of(rest)
        if data != b"[DONE]":
            try:
                _fields.decode(data)
            except (msgspec.DecodeError, RecursionError):
                self.truncated = True
                return b""
        return self._block(rest.rstrip(b"\r\n") + b"\n\n")

    def output_tokens(self) -> int:
        """Output tokens so far, estimated from the text alone."""
        return tokens.of_text(self._gauge.text_bytes())

    def ending(self, usage: Usage, cost: str | None, *, wanted: bool) -> bytes:
        """What ends the stream once it is settled: the usage chunk where the caller wanted one, and `[DONE]`."""
        return self.usage_event(self.usage or to_openai(usage), cost) + DONE if wanted else DONE

    def usage_event(self, usage: bytes, cost: str | None) -> bytes:
        """The one usage chunk, with `choices: []`: the provider's own where it sent one, with `cost` put into its usage."""
        body: dict[str, Raw] = _fields.decode(usage)
        body.pop(ENGINE_TIME, None)
        if cost is not None:
            body["cost"] = Raw(_encode(cost))
        if self._usage_event is not None:
            fields = _fields.decode(self._usage_event)
            fields["choices"] = Raw(b"[]")
            fields["usage"] = Raw(_encode(body))
            return b"data: " + _encode(fields) + b"\n\n"
        head = self._first_head()
        return b"data: %b\n\n" % _encode(
            {
                "id": head.id,
                "object": head.object,
                "created": head.created,
                "model": head.model,
                "choices": [],
                "usage": body,
            }
        )

    def _first_head(self) -> Head:
        for event in re.split(rb"\r\n\r\n|\n\n|\r\r", self._first or b""):
            try:
                return _head.decode(payload_of(event))
            except (msgspec.DecodeError, RecursionError):
                continue
        return Head()

    def _block(self, block: bytes) -> bytes:
        """One or more whole events."""
        self.size += len(block)
        if self._first is None and b"data:" in block:  # a comment may stand before
            self._first = block
        self._gauge.add(block)
        if self._finishes < self._choices:
            # A single choice finishes at the stream's end: looking at the end of each read finds it.
            start = 0 if self._choices > 1 else max(0, len(block) - FINISH_WITHIN)
            self._finishes += block.count(b'"finish_reason":"', start) + block.count(b'"finish_reason": "', start)
        mark = _next_mark(block, 0)
        return block if mark < 0 else self._take_apart(block, mark)

    def _take_apart(self, block: bytes, mark: int) -> bytes:
        """Looks at the events that have a mark; whatever lies between them is kept as it is."""
        kept: list[bytes] = []
        run = at = 0
        while mark >= 0:
            start, end = _event_around(block, at, mark)
            event = block[start:end]
            replacement = self._event(event)
            if replacement is not event:
                kept.append(block[run:start])
                kept.append(replacement)
                run = end
                if self.done:
                    return b"".join(kept)
            at = end
            mark = _next_mark(block, at)
        kept.append(block[run:])
        return b"".join(kept)

    def _event(self, event: bytes) -> bytes:
        """The bytes to send in the event's place: the same object, others, or none."""
        data = payload_of(event)
        if data.strip() == b"[DONE]":
            self.done = True
            return b""
        if not data:
            return event
        try:
            parsed = _event.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StreamBroken(f"an event that is no chunk: {error}") from error
        if given(parsed.error):
            self.error = bytes(parsed.error)
            self.done = True
            return b""
        usage = self._find_usage(parsed)
        if usage is None:
            return event
        try:
            _fields.decode(usage)  # what was passed over unread may hold bytes that are no text
            kept = event if parsed.choices and not self._strip else self._without_usage(event, data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StreamBroken(f"a usage that cannot be read: {error}") from error
        self.usage = usage
        self.service_tier = parsed.service_tier or self.service_tier
        if not parsed.choices:
            self._usage_event = data
            return b""
        return kept

    def _find_usage(self, parsed: Chunk) -> bytes | None:
        if given(parsed.usage):
            return bytes(parsed.usage)
        for part in (*(parsed.choices or ()), parsed.x_groq):
            if part is not None and given(part.usage):
                return bytes(part.usage)
        return None

    def _without_usage(self, event: bytes, data: bytes) -> bytes:
        fields = _fields.decode(data)
        if fields.pop("usage", None) is None:
            return event
        lead = event[: event.index(b"data:")] if not event.startswith(b"data:") else b""
        return lead + b"data: " + _encode(fields) + b"\n\n"
