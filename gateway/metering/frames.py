"""The bytes of a segment: one header, then frames, then (in a segment that is still preallocated) zeros.

    header  = magic "MGJOURNL" | u16 version | u16 zero | u32 segment number | u32 crc32 of the 16 bytes before
    frame   = u32 length | u32 crc32 of the payload, seeded with the length | payload (msgpack, 1 byte to 1 MiB)

All integers are little-endian. The length seeds the checksum, so a frame whose length was damaged does not pass, and a
length of zero is never a frame: zeros after the last frame mean "nothing written here yet".
"""

from __future__ import annotations

from struct import Struct
from typing import Final
from zlib import crc32

from gateway.metering.errors import SegmentError

MAGIC: Final = b"MGJOURNL"
VERSION: Final = 1
MAX_PAYLOAD: Final = 1 << 20

_HEADER: Final = Struct("<8sHHI")
_CHECK: Final = Struct("<I")
_FRAME: Final = Struct("<II")
HEADER_BYTES: Final = _HEADER.size + _CHECK.size
FRAME_BYTES: Final = _FRAME.size
_unpack_frame: Final = _FRAME.unpack_from


def pack_header(number: int) -> bytes:
    head = _HEADER.pack(MAGIC, VERSION, 0, number)
    return head + _CHECK.pack(crc32(head))


def check_header(data: bytes, number: int) -> bool:
    """Whether `data` starts with the header of segment `number`; False for one that was never (or only half) written.

    Raises `SegmentError` for a whole header of another version or of another segment.
    """
    head = data[: _HEADER.size]
    if len(data) < HEADER_BYTES or _CHECK.unpack_from(data, _HEADER.size)[0] != crc32(head):
        return False
    magic, version, _, found = _HEADER.unpack(head)
    if magic != MAGIC:
        return False
    if version != VERSION:
        raise SegmentError(f"segment {number} has format version {version}; this release reads version {VERSION}")
    if found != number:
        raise SegmentError(f"segment {number} says that it is segment {found}; was it copied or renamed?")
    return True


def pack_frame(payload: bytes) -> bytes:
    length = len(payload)
    return _FRAME.pack(length, crc32(payload, length)) + payload


class Frame:
    """One whole frame: its payload, and the offset in the scanned bytes right behind it."""

    __slots__ = ("end", "payload")

    def __init__(self, payload: bytes, end: int) -> None:
        self.payload = payload
        self.end = end


def scan(data: bytes, start: int, limit: int) -> list[Frame]:
    """At most `limit` whole frames of `data` from `start` on, up to the first that is missing, torn or damaged."""
    frames: list[Frame] = []
    size, body = len(data), start + FRAME_BYTES
    while body <= size and len(frames) < limit:
        length, check = _unpack_frame(data, body - FRAME_BYTES)
        end = body + length
        if not 0 < length <= MAX_PAYLOAD or end > size:
            break
        payload = data[body:end]
        if crc32(payload, length) != check:
            break
        frames.append(Frame(payload, end))
        body = end + FRAME_BYTES
    return frames


def is_blank(data: bytes, start: int) -> bool:
    """Whether nothing was ever written from `start` on."""
    return data.count(0, start) == len(data) - start


def resync(data: bytes, start: int) -> int | None:
    """The offset of the next whole frame at or after `start`, or None: how reading goes on behind damaged bytes."""
    size = len(data)
    for at in range(start, size - FRAME_BYTES):
        length, check = _FRAME.unpack_from(data, at)
        if 0 < length <= min(MAX_PAYLOAD, size - at - FRAME_BYTES):
            payload = data[at + FRAME_BYTES : at + FRAME_BYTES + length]
            if crc32(payload, length) == check:
                return at
    return None
