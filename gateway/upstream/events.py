"""A provider's stream of another dialect, on its way to a caller as OpenAI's chat chunks.

`EventScanner` has the shape of `gateway.sse.StreamScanner`; a dialect says what one event becomes. Unlike there every event is
parsed, because every event must be written anew.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

from billing.usage import Usage
from gateway import tokens
from gateway.dialects.reading import encode
from gateway.sse import DONE, MAX_EVENT_BYTES, StreamBroken, last_boundary
from gateway.upstream.usage import to_openai_fields

EVENT_END: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")


class Scanner(Protocol):
    """What an exchange asks of a stream; see `gateway.sse.StreamScanner`."""

    tail: bytes

    @property
    def usage(self) -> bytes | None: ...
    @property
    def service_tier(self) -> str | None: ...
    @property
    def error(self) -> bytes | None: ...
    @property
    def done(self) -> bool: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def size(self) -> int: ...
    def feed(self, read: bytes) -> bytes: ...
    def end(self) -> bytes: ...
    def output_tokens(self) -> int: ...
    def ending(self, usage: Usage, cost: str | None, *, wanted: bool) -> bytes: ...


def split_events(block: bytes) -> list[bytes]:
    """The events of one or more whole ones, without their ends."""
    if b"\r" not in block:
        return [event for event in block.split(b"\n\n") if event]
    return [event for event in EVENT_END.split(block) if event]


class ChunkWriter:
    """Writes chat chunks that all have the same head."""

    __slots__ = ("created", "id", "model", "spoken")

    def __init__(self, id: str = "", model: str = "") -> None:
        self.id = id
        self.model = model
        self.created = int(time.time())
        self.spoken: set[int] = set()

    def write(self, delta: dict[str, Any], *, index: int = 0, finish: str | None = None) -> bytes:
        if index not in self.spoken:
            self.spoken.add(index)
            delta = {"role": "assistant", **delta}
        return self._chunk([{"index": index, "delta": delta, "finish_reason": finish}])

    def usage(self, usage: Usage, cost: str | None) -> bytes:
        fields = to_openai_fields(usage)
        if cost is not None:
            fields["cost"] = cost
        return self._chunk([], fields)

    def _chunk(self, choices: list[Any], usage: Any = None) -> bytes:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            chunk["usage"] = usage
        return b"data: " + encode(chunk) + b"\n\n"


class EventScanner(ABC):
    """Base of the dialects' scanners."""

    def __init__(self) -> None:
        self._carry = bytearray()
        self.writer = ChunkWriter()
        self.text_bytes = 0
        """Bytes of what was generated: text, reasoning, arguments."""
        self.service_tier: str | None = None
        self.error: bytes | None = None
        self.tail = b""
        self.done = False
        self.finished = False
        self.truncated = False
        self.size = 0

    @property
    @abstractmethod
    def usage(self) -> bytes | None:
        """The last usage that was reported, in the provider's own form."""

    @abstractmethod
    def take(self, event: bytes) -> bytes:
        """What one event becomes. Raises `StreamBroken` for what is none of the dialect."""

    def feed(self, read: bytes) -> bytes:
        if self.done:
            return b""
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
        rest = bytes(self._carry)
        self._carry.clear()
        if self.done or not rest.strip():
            return b""
        try:
            return self._block(rest)
        except StreamBroken:
            self.truncated = True
            return b""

    def output_tokens(self) -> int:
        """Output tokens so far, estimated from the text alone."""
        return tokens.of_text(self.text_bytes)

    def ending(self, usage: Usage, cost: str | None, *, wanted: bool) -> bytes:
        return (self.writer.usage(usage, cost) if wanted else b"") + DONE

    def _block(self, block: bytes) -> bytes:
        self.size += len(block)
        out: list[bytes] = []
        for event in split_events(block):
            out.append(self.take(event))
            if self.done:
                break
        return b"".join(out)

    def note(self, text: str) -> None:
        self.text_bytes += len(text.encode("utf-8", "replace"))
