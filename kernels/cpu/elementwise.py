"""Norms, biases, rotary embedding with the write into the KV cache, gated activations: one pass over the rows each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .tape import TOTAL, operation
from .vector import F32V, I64, as_pointer, atomic_next, bits_of, exp, fma, load, read_float, read_int, write_int

FAST = {"reassoc", "contract"}
"""Sums may be reordered (so that they vectorise); NaN and infinity keep their meaning."""


@njit(fastmath=FAST)
def _norm_row(x: Any, weight: Any, y: Any, size: int, eps: float, keep: float) -> None:
    """y = norm(x) + keep y."""
    total = np.float32(0.0)
    for i in range(size):
        total += x[i] * x[i]
    scale = np.float32(1.0) / np.sqrt(total / np.float32(size) + eps)
    if keep == np.float32(0.0):
        for i in range(size):
            y[i] = x[i] * scale * weight[i]
    else:
        for i in range(size):
            y[i] += x[i] * scale * weight[i]


@njit
def store_bf16(source: Any, target: Any, size: int) -> None:
    """Rounds to nearest even; a NaN stays one (its quiet bit survives the cut)."""
    for i in range(size):
        bits = bits_of(source[i])
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        target[i] = np.uint16((bits >> 16) | 64 if source[i] != source[i] else rounded)


@operation
def rms_norm(row: int) -> int:
    """Arguments: x, its stride (bytes), weight, y, its stride, size, eps (a float's bits), 1 to add to y or 0 to set it, where to
    put y in bfloat16 as well (0: nowhere), its stride.
    """
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, weight, y = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    y_stride, size, eps, keep = (
        read_int(row, 8),
        read_int(row, 9),
        read_float(row + 80, 0),
        np.float32(read_int(row, 11)),
    )
    twin, twin_stride = read_int(row, 12), read_int(row, 13)
    scale = carray(as_pointer(weight), (size,), np.float32)
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        out = carray(as_pointer(y + index * y_stride), (size,), np.float32)
        _norm_row(carray(as_pointer(x + index * x_stride), (size,), np.float32), scale, out, size, eps, keep)
        if twin != 0:
            store_bf16(out, carray(as_pointer(twin + index * twin_stride), (size,), np.uint16), size)
        done += 1
        index = atomic_next(row)
    return done


@operation
def head_norm(row: int) -> int:
    """Arguments: x, its stride (bytes), weights (a row for each head), heads, head size, eps (a float's bits). In place."""
    rows = read_int(read_int(row, 3), 0)
    x, stride, weights, heads = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    size, eps = read_int(row, 8), read_float(row + 72, 0)
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        for head in range(heads):
            values = carray(as_pointer(x + index * stride + head * size * 4), (size,), np.float32)
            weight = carray(as_pointer(weights + head * size * 4), (size,), np.float32)
            _norm_row(values, weight, values, size, eps, np.float32(0.0))
        done += 1
        index = atomic_next(row)
    return done


@operation
def add_bias(row: int) -> int:
    """Arguments: x, its stride (bytes), bias, width."""
    rows = read_int(read_int(row, 3), 0)
    x, stride, width = read_int(row, 4), read_int(row, 5), read_int(row, 7)
    bias = carray(as_pointer(read_int(row, 6)), (width,), np.float32)
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        values = carray(as_pointer(x + index * stride), (width,), np.float32)
        for i in range(width):
            values[i] += bias[i]
        done += 1
        index = atomic_next(row)
    return done


@operation
def narrow(row: int) -> int:
    """Arguments: x, its stride (bytes), y (bfloat16), its stride, size: y = x."""
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, y, y_stride, size = (
        read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7), read_int(row, 8),
    )  # fmt: skip
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        source = carray(as_pointer(x + index * x_stride), (size,), np.float32)
        store_bf16(source, carray(as_pointer(y + index * y_stride), (size,), np.uint16), size)
        done += 1
        index = atomic_next(row)
    return done


@intrinsic(prefer_literal=True)
def _gated_mul_vectors(typingctx: Any, gelu: Any, gate: Any, up: Any, out: Any, vectors: Any) -> Any:
    """out = g sigmoid(z) u, with z = g (SiLU), or z = 2 sqrt(2 / pi) (g + 0.044715 g³) (GELU in its tanh form)."""
    if not isinstance(gelu, types.IntegerLiteral):
        return None
    tanh_form = gelu.literal_value == 1

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, gate, up, out, vectors = args
        one = F32V([1.0] * F32V.count)
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            offset = builder.mul(loop.index, I64(64))
            g = load(builder, builder.add(gate, offset), F32V, 4)
            u = load(builder, builder.add(up, offset), F32V, 4)
            z = g
            if tanh_form:
                inner = fma(builder, builder.fmul(g, g), F32V([0.044715] * F32V.count), one)
                z = builder.fmul(builder.fmul(g, inner), F32V([1.5957691216057308] * F32V.count))
            sigmoid = builder.fdiv(one, builder.fadd(one, exp(builder, builder.fneg(z))))
            value = builder.fmul(builder.fmul(g, sigmoid), u)
            builder.store(value, builder.inttoptr(builder.add(out, offset), F32V.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(gelu, *[types.int64] * 4), codegen


@njit(inline="always")
def _gated_mul(gelu: int, row: int) -> int:
    """Arguments: gate_up, its stride (bytes), out, its stride, width of one half (a multiple of 16), where to put out in bfloat16
    as well (0: nowhere), its stride.
    """
    rows = read_int(read_int(row, 3), 0)
    x, x_stride, out, out_stride, width = (
        read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7), read_int(row, 8),
    )  # fmt: skip
    twin, twin_stride = read_int(row, 9), read_int(row, 10)
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        gate = x + index * x_stride
        result = out + index * out_stride
        _gated_mul_vectors(gelu, gate, gate + width * 4, result, width // 16)
        if twin != 0:
            values = carray(as_pointer(result), (width,), np.float32)
            store_bf16(values, carray(as_pointer(twin + index * twin_stride), (width,), np.uint16), width)
        done += 1
        index = atomic_next(row)
    return done


@operation
def silu_mul(row: int) -> int:
    return _gated_mul(0, row)


@operation
def gelu_mul(row: int) -> int:
    return _gated_mul(1, row)


@njit(fastmath=FAST)
def _rotate(source: Any, target: Any, cos: Any, sin: Any, half: int) -> None:
    for i in range(half):
        a = source[i]
        b = source[i + half]
        target[i] = a * cos[i] - b * sin[i]
        target[i + half] = b * cos[i] + a * sin[i]


@njit
def _place_f32(key: Any, value: Any, keys: int, values: int, token: int, size: int) -> None:
    """Into the block and head at `keys` and `values` (layout: cache.py)."""
    columns = carray(as_pointer(keys), (16 * size,), np.float32)
    line = carray(as_pointer(values + token * size * 4), (size,), np.float32)
    for i in range(size):
        columns[i * 16 + token] = key[i]
        line[i] = value[i]


@njit
def _place_bf16(key: Any, value: Any, narrow: int, keys: int, values: int, token: int, size: int) -> None:
    """The same in bfloat16, by way of `size` floats of scratch at `narrow`."""
    store_bf16(key, carray(as_pointer(narrow), (size,), np.uint16), size)
    store_bf16(value, carray(as_pointer(narrow + size * 2), (size,), np.uint16), size)
    pairs = carray(as_pointer(narrow), (size // 2,), np.uint32)
    columns = carray(as_pointer(keys), (8 * size,), np.uint32)
    for i in range(size // 2):
        columns[i * 16 + token] = pairs[i]
    numbers = carray(as_pointer(narrow + size * 2), (size,), np.uint16)
    line = carray(as_pointer(values + ((token >> 1) * 2 * size + (token & 1)) * 2), (2 * size,), np.uint16)
    for i in range(size):
        line[2 * i] = numbers[i]


@operation
def rotary_write(row: int) -> int:
    """Rotates the queries in place and stores rotated keys and values at the tokens' slots.

    Arguments: qkv, its stride (bytes), cos, sin ([positions, head_dim / 2]), positions, slots (int64 each), k_cache,
    v_cache, query heads, kv heads, head_dim, cache storage (0 f32, 1 bf16), scratch (2 head_dim floats per thread).
    """
    rows = read_int(read_int(row, 3), 0)
    qkv, stride, cos_table, sin_table = read_int(row, 4), read_int(row, 5), read_int(row, 6), read_int(row, 7)
    positions, slots, k_cache, v_cache = read_int(row, 8), read_int(row, 9), read_int(row, 10), read_int(row, 11)
    heads, kv_heads, size, storage = read_int(row, 12), read_int(row, 13), read_int(row, 14), read_int(row, 15)
    half = size // 2
    width = 2 if storage == 1 else 4
    own = read_int(row, 16) + atomic_next(row + 8) * size * 8
    scratch, narrow = carray(as_pointer(own), (size,), np.float32), own + size * 4
    write_int(row, TOTAL, rows)
    done = 0
    index = atomic_next(row)
    while index < rows:
        position = read_int(positions, index)
        cos = carray(as_pointer(cos_table + position * half * 4), (half,), np.float32)
        sin = carray(as_pointer(sin_table + position * half * 4), (half,), np.float32)
        token = qkv + index * stride
        for head in range(heads):
            query = carray(as_pointer(token + head * size * 4), (size,), np.float32)
            _rotate(query, query, cos, sin, half)
        slot = read_int(slots, index)
        for head in range(kv_heads):
            key = carray(as_pointer(token + (heads + head) * size * 4), (size,), np.float32)
            value = carray(as_pointer(token + (heads + kv_heads + head) * size * 4), (size,), np.float32)
            _rotate(key, scratch, cos, sin, half)
            place = ((slot >> 4) * kv_heads + head) * 16 * size * width
            if storage == 1:
                _place_bf16(scratch, value, narrow, k_cache + place, v_cache + place, slot & 15, size)
            else:
                _place_f32(scratch, value, k_cache + place, v_cache + place, slot & 15, size)
        done += 1
        index = atomic_next(row)
    return done
