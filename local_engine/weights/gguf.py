"""GGUF files: metadata as plain Python values, tensors as views into the mapped file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian). The reader of the `gguf`
package wraps each of the ~150,000 vocabulary strings in numpy arrays and takes 5 s for SmolLM2; this one takes 0.1 s. Its
dequantisers are used as they are.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError

MAGIC = b"GGUF"
MAX_DIMENSIONS = 4
_ARRAY = 9
_STRING = 8
_SCALARS: dict[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor: `shape` in torch's order (rows first), `data` its bytes, one row per row of the tensor."""

    name: str
    kind: str
    """ggml's name of the storage type: F32, F16, BF16, Q4_1, Q8_0, …"""
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def part(self, number: int) -> GGUFTensor:
        """One of the matrices that are stacked in a tensor [count, rows, columns]."""
        rows = self.shape[1]
        return GGUFTensor(
            f"{self.name}[{number}]", self.kind, self.shape[1:], self.data[number * rows : (number + 1) * rows]
        )

    def dequantised(self) -> NDArray[np.float32]:
        """The values as float32, shape `shape`. Raises `ModelError` for a type that the gguf package cannot read."""
        if self.kind == "F32":
            return self.data.view(np.float32).reshape(self.shape)
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        try:
            values = dequantize(self.data, GGMLQuantizationType[self.kind])
        except (NotImplementedError, KeyError) as error:
            raise ModelError(
                f"tensor {self.name} is stored as {self.kind}, which this engine cannot read: take a file of another "
                "quantisation (F16, BF16, Q8_0, Q4_0, Q4_1, Q5_*, Q4_K, Q5_K, Q6_K)"
            ) from error
        return values.reshape(self.shape).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    path: Path
    metadata: dict[str, Any]
    """Keys as in the file; values are int, float, bool, str or lists of them."""
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFFile:
    """Maps the file and reads its header. Raises `ModelError` naming the file, the cause and the remedy."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(200)
        refuse_lfs_pointer(path, head)
        if head[:4] != MAGIC:
            raise ModelError(f"{path} is not a GGUF file (it starts with {head[:4]!r}); download it again")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        return _parse(path, mapped, size)
    except (struct.error, IndexError, ValueError, OverflowError, TypeError) as error:
        raise ModelError(f"{path} is truncated or corrupt in its header ({size:,} bytes): download it again") from error


def refuse_lfs_pointer(path: Path, head: bytes) -> None:
    """Raises `ModelError` when `head`, the file's first bytes, belongs to a git-LFS pointer instead of the weights."""
    if head.startswith(b"version https://git-lfs"):
        raise ModelError(
            f"{path} is a git-LFS pointer, not the weights themselves: run `git lfs pull` in its folder, "
            "or download the file itself"
        )


class _Cursor:
    """Reads values of the header one after the other."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.at = 4

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self.buffer, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        start = self.at
        self.at += length
        if self.at > len(self.buffer):
            raise IndexError(length)
        return self.buffer[start : self.at].decode("utf-8", errors="surrogateescape")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(self.scalar("<I"), self.scalar("<Q"))
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return self.strings(count)
        if kind not in _SCALARS:
            raise ValueError(f"a list of values of type {kind}")
        form = f"<{count}{_SCALARS[kind][1]}"
        values = struct.unpack_from(form, self.buffer, self.at)
        self.at += struct.calcsize(form)
        return list(values)

    def strings(self, count: int) -> list[str]:
        """The hot loop: a vocabulary has tens of thousands of them."""
        buffer, at, unpack = self.buffer, self.at, struct.Struct("<Q").unpack_from
        size = len(buffer)
        texts = []
        for _ in range(count):
            (length,) = unpack(buffer, at)
            at += 8
            if length > size - at:
                raise IndexError(length)
            texts.append(buffer[at : at + length].decode("utf-8", errors="surrogateescape"))
            at += length
        self.at = at
        return texts


def _parse(path: Path, mapped: mmap.mmap, size: int) -> GGUFFile:
    cursor = _Cursor(mapped)
    version = cursor.scalar("<I")
    if version not in (2, 3):
        raise ModelError(f"{path} is a GGUF file of version {version}; this engine reads 2 and 3 (little endian)")
    tensor_count, value_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(value_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"an alignment of {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    whole = np.frombuffer(mapped, dtype=np.uint8)
    tensors = {}
    for name, shape, kind_id, offset in entries:
        kind, block, block_bytes = _storage(path, name, kind_id)
        if not 1 <= len(shape) <= MAX_DIMENSIONS or min(shape) < 1 or shape[-1] % block:
            raise ModelError(
                f"{path}: tensor {name} is {kind} of the impossible shape {_short(shape)}: download it again"
            )
        if name in tensors:
            raise ModelError(f"{path} has two tensors {name}: download it again, or convert the model again")
        rows = math.prod(shape[:-1])
        row_bytes = shape[-1] // block * block_bytes
        start, stop = base + offset, base + offset + rows * row_bytes
        if stop > size:
            raise ModelError(
                f"{path} is truncated: tensor {name} ends at byte {stop:,}, the file has {size:,}; download it again"
            )
        tensors[name] = GGUFTensor(name, kind, shape, whole[start:stop].reshape(rows, row_bytes))
    return GGUFFile(path, metadata, tensors)


def _short(shape: tuple[int, ...]) -> str:
    return f"{list(shape[:MAX_DIMENSIONS])}{'' if len(shape) <= MAX_DIMENSIONS else ' …'}"


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dimensions = cursor.scalar("<I")
    shape = tuple(int(cursor.scalar("<Q")) for _ in range(dimensions))
    return name, shape[::-1], cursor.scalar("<I"), cursor.scalar("<Q")


def _storage(path: Path, tensor: str, kind_id: int) -> tuple[str, int, int]:
    """(name, weights per block, bytes per block) of ggml's storage type."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(kind_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError) as error:
        raise ModelError(f"{path}: tensor {tensor} has the unknown storage type {kind_id}") from error
    return kind.name, block, block_bytes
