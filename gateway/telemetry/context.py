"""W3C trace context: what a caller sends, what a provider is sent, and the ids of our own spans.

Span ids derive from the request's id, so the door can name a span to a provider that the recorder only describes later, and
a row that is recorded by another process tells of the same spans. Source: https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple

REQUEST: Final = 0
"""The number of the request's own span; those of its attempts are their sequences, from 1."""

_HEADER: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?")
_ABSENT: Final = (b"0" * 32, b"0" * 16)


class Parent(NamedTuple):
    """The caller's span: ids in hex. `sampled`: whether the caller records it."""

    trace_id: str
    span_id: str
    sampled: bool

    def header(self) -> str:
        """The caller's `traceparent` as this version writes it: of 55 characters, whatever was sent."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def read_traceparent(header: bytes) -> Parent | None:
    """None for what is no valid header: then a trace begins here, as the standard has it."""
    found = _HEADER.fullmatch(header.strip())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or trace == _ABSENT[0] or span == _ABSENT[1] or (version == b"00" and more is not None):
        return None
    return Parent(trace.decode(), span.decode(), bool(int(flags, 16) & 1))


def trace_id(request_id: bytes, parent: Parent | None) -> str:
    """The caller's trace, or the request's own: its id."""
    return request_id.hex() if parent is None else parent.trace_id


def span_id(request_id: bytes, number: int) -> str:
    """Of the request (`REQUEST`) or of its attempt `number`; never zero."""
    return blake2b(number.to_bytes(4, "big"), key=request_id, digest_size=8).hexdigest()


def traceparent(request_id: bytes, number: int, parent: Parent | None, *, sampled: bool) -> str:
    """What the provider of attempt `number` is sent."""
    return f"00-{trace_id(request_id, parent)}-{span_id(request_id, number)}-{'01' if sampled else '00'}"


def is_sampled(request_id: bytes, parent: Parent | None, share: float) -> bool:
    """The caller's own decision where it made one; else `share` of all requests, the same ones in every process."""
    if parent is not None:
        return parent.sampled
    return int.from_bytes(request_id[-4:], "big") < share * 2**32
