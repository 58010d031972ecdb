"""Request ids: UUIDv7 (RFC 9562), strictly increasing within a process; the row's timestamp is the id's."""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid
from typing import Final

# 12 bits of rand_a and 62 of rand_b are used as one counter (RFC 9562, 6.2, method 2), kept in two parts that fit a machine word.
_HIGH_MAX: Final = (1 << 12) - 1
_LOW_MAX: Final = (1 << 62) - 1
_POOL: Final = 1024
_UNKNOWN: Final = uuid.SafeUUID.unknown
_new: Final = object.__new__
_set_int: Final = uuid.UUID.__dict__["int"].__set__
_set_is_safe: Final = uuid.UUID.__dict__["is_safe"].__set__


class _Generator:
    """One millisecond clock that never runs backwards and one counter, seeded at random in each millisecond."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0
        self._high = 0
        self._low = 0
        self._pool: list[int] = []

    def next(self) -> uuid.UUID:
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if now_ms > self._last_ms:
                self._seed(now_ms)
            else:
                self._low += 1 + self._random()
                if self._low > _LOW_MAX:
                    self._low &= _LOW_MAX
                    self._high += 1
                    if self._high > _HIGH_MAX:
                        self._seed(self._last_ms + 1)
            return uuid_of((self._last_ms << 16 | 7 << 12 | self._high) << 64 | 2 << 62 | self._low)

    def _seed(self, ms: int) -> None:
        self._last_ms = ms
        self._high = self._random() >> 21  # top bit 0: room to count
        self._low = (self._random() & 0x3FFFFFFF) << 32 | self._random()

    def _random(self) -> int:
        """Of 32 bits."""
        if not self._pool:
            self._pool = list(struct.unpack(f"{_POOL}I", os.urandom(4 * _POOL)))
        return self._pool.pop()


def uuid_of(value: int) -> uuid.UUID:
    """`UUID(int=value)` without its checks, which cost more than the rest of an id: the value is one of ours."""
    made = _new(uuid.UUID)
    _set_int(made, value)
    _set_is_safe(made, _UNKNOWN)
    return made


def text_of(request_id: uuid.UUID) -> str:
    """What `str` gives, in half the time."""
    digits = request_id.bytes.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_generator = _Generator()
os.register_at_fork(after_in_child=_generator.reset)

new_request_id = _generator.next


def time_us_of(request_id: uuid.UUID) -> int:
    """When the id was made: microseconds since the epoch, UTC, to the millisecond."""
    return (request_id.int >> 80) * 1000
