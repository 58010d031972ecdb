"""A Messages stream on its way to a caller of the same dialect: every event keeps its bytes but the last `message_delta`.

That one says the usage, and gets the cost put in; it and `message_stop` wait until the request is settled.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from billing.usage import Usage
from gateway import tokens
from gateway.dialects.anthropic import usage_object
from gateway.dialects.reading import encode
from gateway.spoken import Gauge
from gateway.sse import StreamBroken, payload_of
from gateway.upstream.anthropic_usage import merge_usage, partial_usage, tier_in
from gateway.upstream.events import EventScanner
from gateway.upstream.shapes import NULL, given

_MARKS = (b'"usage"', b'"message_stop"', b'"error"', b'"message_delta"')


class _Message(Struct):
    usage: Raw = NULL


class _Event(Struct):
    type: str
    message: _Message | None = None
    usage: Raw = NULL
    error: Raw = NULL


_event = msgspec.json.Decoder(_Event)
_fields = msgspec.json.Decoder(dict[str, Any])


class PassingScanner(EventScanner):
    def __init__(self) -> None:
        super().__init__()
        self._reported: bytes | None = None
        self._counted = False
        self._held: bytes | None = None
        self._gauge = Gauge()

    def output_tokens(self) -> int:
        return tokens.of_text(self._gauge.text_bytes())

    @property
    def usage(self) -> bytes | None:
        return self._reported if self._counted else partial_usage(self._reported, self.output_tokens())

    def take(self, event: bytes) -> bytes:
        if b"content_block_delta" in event:
            self._gauge.add(event + b"\n\n")
        if any(mark in event for mark in _MARKS):
            return self._marked(event)
        if b'"ping"' in event:
            return event + b"\n\n"
        return self._released() + event + b"\n\n"

    def _marked(self, event: bytes) -> bytes:
        data = payload_of(event)
        if not data:
            return event + b"\n\n"
        try:
            parsed = _event.decode(data)
            if parsed.type == "message_delta":
                _fields.decode(data)  # it is written anew at the end: what was passed over unread has to be text
        except (msgspec.DecodeError, RecursionError) as error:
            raise StreamBroken(f"an event that is none of Anthropic's: {error}") from error
        if parsed.type == "error":
            self.error, self.done = bytes(parsed.error), True
            return self._released()
        if parsed.type == "message_stop":
            self.done = self.finished = True
            return b""
        if parsed.type == "message_start" and parsed.message is not None:
            self._count(parsed.message.usage)
        elif parsed.type == "message_delta":
            released, self._held = self._released(), event
            self._count(parsed.usage)
            self._counted = self._counted or given(parsed.usage)
            self.finished = True
            return released
        return self._released() + event + b"\n\n"

    def _count(self, usage: Raw) -> None:
        if given(usage):
            self._reported = merge_usage(self._reported, bytes(usage))
            self.service_tier = tier_in(self._reported)

    def _released(self) -> bytes:
        held, self._held = self._held, None
        return b"" if held is None else held + b"\n\n"

    def ending(self, usage: Usage, cost: str | None, *, wanted: bool) -> bytes:
        stop = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        if self._held is None:
            return stop
        if cost is None:
            return self._released() + stop
        fields = _fields.decode(payload_of(self._held))
        said = fields.get("usage")
        fields["usage"] = {**(said if isinstance(said, dict) else usage_object(usage)), "cost": cost}
        return b"event: message_delta\ndata: " + encode(fields) + b"\n\n" + stop
