"""Whatever a GGUF file claims, reading it ends soon: in a model, or in an error of ours that names what is wrong (rule 43)."""

from __future__ import annotations

import contextlib
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from local_engine.config import EngineConfig
from local_engine.errors import ModelError
from local_engine.runner import ModelRunner
from local_engine.tokenizer_gguf import load_gguf_tokenizer
from local_engine.weights.gguf import read_gguf
from local_engine.weights.gguf_source import GGUFSource

Value = tuple[int, Any]
"""GGUF's number of a type, and a value; of type 9 with the items' type."""
FORMS = {4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q"}
WIDTH, INNER, PIECES = 64, 96, ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "ab"]
LYING: tuple[Value, ...] = (
    (8, "abc"), (4, 0), (4, 3), (5, -1), (4, 2**32 - 1), (10, 2**64 - 1), (6, math.nan), (6, math.inf), (7, True),
    (9, (4, [])), (9, (8, ["x"])), (9, (4, [1, 2])),
)  # fmt: skip


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def packed(kind: int, value: Any) -> bytes:
    if kind == 8:
        return text(value)
    if kind == 9:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(packed(inner, item) for item in items)
    return struct.pack(FORMS[kind], value)


KEYS: dict[str, Value] = {
    "general.architecture": (8, "llama"),
    "general.alignment": (4, 32),
    "llama.block_count": (4, 1),
    "llama.embedding_length": (4, WIDTH),
    "llama.feed_forward_length": (4, INNER),
    "llama.attention.head_count": (4, 4),
    "llama.attention.head_count_kv": (4, 2),
    "llama.attention.layer_norm_rms_epsilon": (6, 1e-5),
    "llama.context_length": (4, 64),
    "llama.rope.freq_base": (6, 1e4),
    "tokenizer.ggml.model": (8, "llama"),
    "tokenizer.ggml.tokens": (9, (8, PIECES)),
    "tokenizer.ggml.scores": (9, (6, [-float(index) for index in range(len(PIECES))])),
    "tokenizer.ggml.token_type": (9, (5, [2, 3, 3, *[6] * 256, 1, 1, 1])),
    "tokenizer.ggml.eos_token_id": (4, 2),
}
SHAPES = {
    "token_embd": (WIDTH, len(PIECES)), "output_norm": (WIDTH,), "blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,),
    "blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (WIDTH, 32), "blk.0.attn_v": (WIDTH, 32),
    "blk.0.attn_output": (WIDTH, WIDTH), "blk.0.ffn_gate": (WIDTH, INNER), "blk.0.ffn_up": (WIDTH, INNER),
    "blk.0.ffn_down": (INNER, WIDTH),
}  # fmt: skip


def write(
    path: Path,
    keys: dict[str, Value] | None = None,
    *,
    shapes: dict[str, tuple[int, ...]] | None = None,
    raw: bytes = b"",
    storage: int = 0,
    twice: str = "",
) -> Path:
    """`raw`: a last value, from its type on, as it stands. Every tensor holds zeros, as many as its true shape."""
    values = {**KEYS, **(keys or {})}
    names = [*SHAPES, *([twice] if twice else [])]
    out = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(values) + bool(raw))
    out += b"".join(text(key) + struct.pack("<I", kind) + packed(kind, value) for key, (kind, value) in values.items())
    out += text("x") + raw if raw else b""
    at = 0
    for name in names:
        shape = (shapes or {}).get(name, SHAPES[name])
        out += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, storage, at)
        at += math.prod(SHAPES[name]) * 4
    path.write_bytes(out + bytes(-len(out) % 32 + at))
    return path


def load(path: Path) -> None:
    load_gguf_tokenizer(path).encode("ab", add_special_tokens=True)
    config = EngineConfig(str(path), device="cpu", kernels="torch", dtype="float32", num_blocks_override=8)
    ModelRunner(config)


def test_the_honest_file_loads(tmp_path: Path) -> None:
    load(write(tmp_path / "honest.gguf"))


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_the_header_that_lies_is_named_or_harmless(key: str, tmp_path: Path) -> None:
    for value in LYING:
        path = write(tmp_path / "lying.gguf", {key: value})
        for read in (GGUFSource, load_gguf_tokenizer):
            with contextlib.suppress(ModelError):
                read(path)


@pytest.mark.parametrize(
    "shape", [(0,), (WIDTH, 0), (2**32, 2**32), (2**63, 2), (1,) * 9, (7, 9), (WIDTH,), (WIDTH, 8)]
)
@pytest.mark.parametrize("name", ["blk.0.attn_q", "blk.0.attn_output"])
def test_a_tensor_of_another_shape_is_named(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="download"):
        load(write(tmp_path / "lying.gguf", shapes={name: shape}))


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000,
        struct.pack("<IIQ", 9, 0, 2**60),
        struct.pack("<IIQ", 9, 8, 2**64 - 1),
        struct.pack("<IIQQ", 9, 8, 2, 2**60),
        struct.pack("<IIQQ", 9, 8, 2, 2**64 - 1),
        struct.pack("<IQ", 8, 2**60),
        struct.pack("<IQ", 8, 2**64 - 1),
        struct.pack("<I", 99),
    ],
)
def test_counts_and_lengths_beyond_the_file_are_found_before_anything_is_read(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="truncated or corrupt in its header"):
        read_gguf(write(tmp_path / "lying.gguf", raw=raw))


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="two tensors blk.0.attn_q.weight"):
        read_gguf(write(tmp_path / "twice.gguf", twice="blk.0.attn_q"))


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="impossible shape"):
        read_gguf(write(tmp_path / "blocks.gguf", storage=12))
