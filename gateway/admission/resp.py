"""RESP2, as Redis and Valkey speak it: commands as bytes, and replies out of whatever pieces the socket gives.

Source: https://valkey.io/topics/protocol/
"""

from __future__ import annotations

from collections.abc import Iterator


class ErrorReply(Exception):
    """The server's own words, such as `NOSCRIPT No matching script`."""


Word = bytes | str | int


def word(value: Word) -> bytes:
    """One word of a command."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def command(*words: Word) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(map(word, words))


class _More(Exception):
    """The reply goes on in bytes that have not come."""


class Parser:
    """`feed` gives the replies that are whole by now; an error that the server answers is one of them."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[object]:
        buffer, at = self._buffer + data, 0
        try:
            while at < len(buffer):
                reply, at = _parse(buffer, at)
                yield reply
        except _More:
            pass
        finally:
            self._buffer = buffer[at:]


def _parse(buffer: bytes, at: int) -> tuple[object, int]:
    end = buffer.find(b"\r\n", at)
    if end < 0:
        raise _More
    kind, line, after = buffer[at], buffer[at + 1 : end], end + 2
    if kind == 0x24:  # $
        size = int(line)
        if size < 0:
            return None, after
        if len(buffer) < after + size + 2:
            raise _More
        return buffer[after : after + size], after + size + 2
    if kind == 0x3A:  # :
        return int(line), after
    if kind == 0x2B:  # +
        return line, after
    if kind == 0x2D:  # -
        return ErrorReply(line.decode(errors="replace")), after
    if kind == 0x2A:  # *
        if int(line) < 0:
            return None, after
        items = []
        for _ in range(int(line)):
            item, after = _parse(buffer, after)
            items.append(item)
        return items, after
    raise ValueError(f"a reply begins with {bytes([kind])!r}")
