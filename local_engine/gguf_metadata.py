"""The key-value part of a GGUF file, and nothing else of it (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The HTTP process needs the vocabulary, the merges and the template, not the tensors. The `gguf` package takes seconds for
that, because it makes an array view of each of 150,000 strings; reading them straight takes a tenth of one.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from .errors import ModelError

MAGIC = b"GGUF"
LFS_POINTER = b"version https://git-lfs"
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32, _U64 = _SCALARS[4], _SCALARS[10]

MetadataValue = int | float | bool | str | list["MetadataValue"]


def read_metadata(path: Path) -> dict[str, MetadataValue]:
    """All key-value pairs of the file. Raises `ModelError` that names the file, the cause and the remedy."""
    try:
        with path.open("rb") as file:
            head = file.read(32)
            _check_head(path, head)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(data).pairs()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (struct.error, UnicodeDecodeError, IndexError, _Malformed) as error:
        raise ModelError(f"{path} is truncated or corrupt inside its GGUF metadata ({error}): fetch it again") from error


class _Malformed(Exception):
    pass


def _check_head(path: Path, head: bytes) -> None:
    if head.startswith(LFS_POINTER):
        raise ModelError(f"{path} is a git-LFS pointer, not the model itself: run `git lfs pull` beside it")
    if len(head) < 24:
        raise ModelError(f"{path} is truncated: {len(head)} bytes are no GGUF file; fetch it again")
    if not head.startswith(MAGIC):
        raise ModelError(f"{path} is no GGUF file: it begins with {head[:4]!r} instead of {MAGIC!r}")
    version = _U32.unpack_from(head, 4)[0]
    if version not in (2, 3):
        raise ModelError(f"{path} is GGUF version {version}; versions 2 and 3 (little endian) are supported")


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 16

    def pairs(self) -> dict[str, MetadataValue]:
        count = self._number(_U64)
        found: dict[str, MetadataValue] = {}
        for _ in range(count):
            key = self._string()
            found[key] = self._value(self._number(_U32))
        return found

    def _number(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return int(value)

    def _string(self) -> str:
        length = self._number(_U64)
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise _Malformed(f"a string of {length} bytes at offset {start} runs past the end")
        return str(self._data[start : self._at], "utf-8", "replace")

    def _value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        layout = _SCALARS.get(kind)
        if layout is None:
            raise _Malformed(f"unknown value type {kind} at offset {self._at}")
        (value,) = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        assert isinstance(value, (int, float))
        return value

    def _array(self) -> list[MetadataValue]:
        kind = self._number(_U32)
        count = self._number(_U64)
        if count > len(self._data) - self._at:
            raise _Malformed(f"an array of {count} values at offset {self._at} runs past the end")
        layout = _SCALARS.get(kind)
        if layout is None:
            return [self._value(kind) for _ in range(count)]
        values = struct.unpack_from(f"<{count}{layout.format[1:]}", self._data, self._at)
        self._at += count * layout.size
        return list(values)
