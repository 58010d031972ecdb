"""What numba lacks: raw pointers, an atomic counter, calls through a pointer, and float vectors with explicit width.

Every function here is an intrinsic that emits LLVM IR. `LANES` floats travel together; LLVM splits them into the registers the
machine has (two on AVX2, one on AVX-512, four on NEON), so that one source serves all of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

F32 = ir.FloatType()
I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
F32V = ir.VectorType(F32, LANES)
I32V = ir.VectorType(I32, LANES)
I8V = ir.VectorType(I8, LANES)


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """What llvmlite lacks: LLVM's bfloat."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BF16 = _BFloat()
BF16V = ir.VectorType(BF16, 2 * LANES)


def pointer(builder: Any, address: Any, kind: Any, offset_bytes: Any = None) -> Any:
    """An IR pointer to `kind` at `address` (an i64), `offset_bytes` further on."""
    if offset_bytes is not None:
        address = builder.add(address, offset_bytes)
    return builder.inttoptr(address, kind.as_pointer())


def splat(builder: Any, value: Any, lanes: int = LANES) -> Any:
    vector = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, I32(0))
    return builder.shuffle_vector(
        one, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    )


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding, by element."""
    kind = a.type
    name = f"llvm.fma.v{kind.count}f32" if isinstance(kind, ir.VectorType) else "llvm.fma.f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind, kind, kind]), name)
    return builder.call(function, [a, b, c])


def sum_lanes(builder: Any, vector: Any) -> Any:
    """The sum of a vector's elements, in whatever order is quickest."""
    kind = vector.type
    name = f"llvm.vector.reduce.fadd.v{kind.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(F32, [F32, kind]), name)
    return builder.call(function, [F32(0.0), vector], fastmath=("reassoc",))


def exp(builder: Any, x: Any) -> Any:
    """e^x by element, to 2 units in the last place: Cody-Waite reduction and the polynomial of Cephes' expf.

    Below -87 the result is 0, above 88 that of 88; NaN stays NaN. Source: https://www.netlib.org/cephes/ (single/expf.c).
    """
    kind = x.type

    def constant(value: float) -> Any:
        return ir.Constant(kind, [value] * kind.count)

    integers = ir.VectorType(I32, kind.count)
    tiny = builder.fcmp_ordered("<", x, constant(-87.0))
    x = builder.select(builder.fcmp_ordered(">", x, constant(88.0)), constant(88.0), x)
    shifted = fma(builder, x, constant(1.4426950408889634), constant(12582912.0))
    n = builder.fsub(shifted, constant(12582912.0))
    r = fma(builder, n, constant(-0.693359375), x)
    r = fma(builder, n, constant(2.12194440e-4), r)
    p = constant(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(builder, p, r, constant(c))
    p = builder.fadd(fma(builder, builder.fmul(r, r), p, r), constant(1.0))
    power = builder.shl(builder.bitcast(shifted, integers), ir.Constant(integers, [23] * kind.count))
    result = builder.bitcast(builder.add(builder.bitcast(p, integers), power), kind)
    return builder.select(tiny, constant(0.0), result)


def load(builder: Any, address: Any, kind: Any, align: int = 1) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def load_floats(builder: Any, address: Any, kind: str, lanes: int = LANES) -> Any:
    """`lanes` consecutive values of storage `kind` (f32, f16, bf16) as floats."""
    floats = ir.VectorType(F32, lanes)
    if kind == "f32":
        return load(builder, address, floats, 4)
    if kind == "f16":
        return builder.fpext(load(builder, address, ir.VectorType(ir.HalfType(), lanes), 2), floats)
    if kind == "bf16":
        wide = ir.VectorType(I32, lanes)
        raw = builder.zext(load(builder, address, ir.VectorType(ir.IntType(16), lanes), 2), wide)
        return builder.bitcast(builder.shl(raw, ir.Constant(wide, [16] * lanes)), floats)
    raise ValueError(kind)


def dot_pairs(builder: Any, total: Any, pair: Any, weights: Any) -> Any:
    """total + pair . weights by pairs of bfloat16 (AVX-512 BF16 only): <16 x float>, twice <32 x bfloat>."""
    kind = ir.FunctionType(F32V, [F32V, BF16V, BF16V])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [total, pair, weights])


def prefetch_line(builder: Any, address: Any) -> None:
    """Asks for the line of memory at `address`, which need not be anybody's."""
    place = I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [place, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, place), I32(0), I32(3), I32(1)])


@intrinsic
def prefetch(typingctx: Any, address: Any, size: Any) -> Any:
    """Asks for `size` bytes (a multiple of 64) of memory."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with cgutils.for_range(builder, builder.lshr(args[1], I64(6)), intp=I64) as loop:
            prefetch_line(builder, builder.add(args[0], builder.mul(loop.index, I64(64))))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a float32 as an int32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], I32)

    return types.int32(types.float32), codegen


@intrinsic
def atomic_next(typingctx: Any, address: Any) -> Any:
    """Adds one to the int64 at `address` and returns what was there before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", pointer(builder, args[0], I64), I64(1), "monotonic")

    return types.int64(types.int64), codegen


@intrinsic
def atomic_add(typingctx: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at `address`; what was written before is seen by whoever waits for it (`atomic_read`)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.atomic_rmw("add", pointer(builder, args[0], I64), args[1], "acq_rel")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def atomic_read(typingctx: Any, address: Any) -> Any:
    """The int64 at `address`, and with it everything that was written before it was added to."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0], I64), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def call_pointer(typingctx: Any, function: Any, argument: Any) -> Any:
    """Calls the C function `int64_t f(int64_t)` at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def address_of(typingctx: Any, data: Any) -> Any:
    """A void pointer as an integer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], I64)

    return types.int64(types.voidptr), codegen


@intrinsic
def as_pointer(typingctx: Any, address: Any) -> Any:
    """An integer as a void pointer, for `carray`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], I8.as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def read_int(typingctx: Any, address: Any, index: Any) -> Any:
    """The int64 number `index` at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return load(builder, builder.add(args[0], builder.mul(args[1], I64(8))), I64, 8)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def write_int(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.add(args[0], builder.mul(args[1], I64(8)))
        builder.store_atomic(args[2], builder.inttoptr(at, I64.as_pointer()), "monotonic", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def read_float(typingctx: Any, address: Any, index: Any) -> Any:
    """The float number `index` at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return load(builder, builder.add(args[0], builder.mul(args[1], I64(4))), F32, 4)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def read_double(typingctx: Any, address: Any, index: Any) -> Any:
    """The double number `index` at `address`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return load(builder, builder.add(args[0], builder.mul(args[1], I64(8))), ir.DoubleType(), 8)

    return types.float64(types.int64, types.int64), codegen


@intrinsic
def write_float(typingctx: Any, address: Any, index: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(
            args[2], builder.inttoptr(builder.add(args[0], builder.mul(args[1], I64(4))), F32.as_pointer()), 4
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen
