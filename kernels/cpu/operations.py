"""The operations on the CPU: recorded once as a tape over buffers that never move, then replayed for every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..batch import StepLayout
from ..linear import FLOATS, GROUP, PANEL
from ..low_rank import AdapterPairs, adapt_rows
from ..operations import Attention, Experts, Matrix, choose_experts
from ..quantised_weight import Weight, as_stored
from ..sampling import DrawSettings
from . import attention, elementwise, linear, shared_prefix
from .drawing import Drawing
from .int8_weights import ByteMatrix, row_bytes
from .onednn import OneDnnMatrix
from .pairs import WIDE, PairMatrix, pack_pairs
from .panels import PanelMatrix, kernel_of, pack_panels
from .step_inputs import StepInputs
from .tape import Tape, float_bits

_ATTEND = {torch.float32: attention.attend_f32, torch.bfloat16: attention.attend_bf16}
_ATTEND_PREFIX = {torch.float32: shared_prefix.attend_prefix_f32, torch.bfloat16: shared_prefix.attend_prefix_bf16}
_CACHE_STORAGE = {torch.float32: 0, torch.bfloat16: 1}
Program = list[Tape | Callable[[], None]]
"""Tapes, with calls into torch between them."""
TASKS_PER_THREAD = 8
"""Tasks of a matrix per thread: enough to even out a thread that the system has put aside, few enough to stay cheap."""


class CpuOperations:
    """numba kernels in torch's thread pool; float32 activations; weights at their own bits."""

    dtype = torch.float32
    cache_types: Sequence[torch.dtype] = (torch.float32, torch.bfloat16)

    def __init__(
        self,
        threads: int,
        capacity: int,
        max_context: int,
        packed_float: torch.dtype | None = None,
        pairs: bool = False,
        int8: bool = False,
    ) -> None:
        """`capacity`: tokens per step; `max_context`: longest context of a sequence.

        `packed_float`: matrices stored in this type go to oneDNN (onednn.py) instead of the panels. `pairs`: those stored in
        bfloat16, and queries with a cache in it, are multiplied by the processor's own instruction (pairs.py), with activations
        rounded to it. `int8`: matrices in 8 and 4 bits are multiplied with activations rounded to 16 (int8.py).
        """
        self.name = f"numba kernels on {threads} CPU threads, float32 activations"
        self.held: set[str] = set()
        self._packed_float, self._pairs, self._int8 = packed_float, pairs, int8
        self._narrow: dict[int, torch.Tensor] = {}
        self._rounded: dict[int, torch.Tensor] = {}
        self._narrowed: set[int] = set()
        self.threads, self.capacity = threads, capacity
        self._columns = -(-max_context // PANEL) * PANEL
        self._step = StepInputs(capacity, max_context)
        self._marks: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
        self._scratch = torch.zeros(threads * linear.SCRATCH_BYTES, dtype=torch.uint8)
        self._attention_scratch: torch.Tensor | None = None
        self._drawing = Drawing(threads)
        self._logits: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self._recorded: dict[Callable[[], None], Program] = {}
        self._recording: Program | None = None
        self._adapted: dict[int, torch.Tensor] = {}
        self._expert_rows: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}

    def buffer(self, width: int) -> torch.Tensor:
        wide = torch.empty(self.capacity, -(-width // WIDE) * WIDE, dtype=torch.float32)
        if self._pairs and self._packed_float is None and "bf16" in self.held:
            self._narrow[wide.data_ptr()] = torch.empty(wide.shape, dtype=torch.bfloat16)
        return wide[:, :width]

    def pack(self, parts: Sequence[Weight]) -> Matrix:
        whole = as_stored(parts)
        storages = {part.storage for part in whole}
        self.held |= storages
        if self._packed_float is not None and storages == {FLOATS[self._packed_float]}:
            return OneDnnMatrix(whole, self._packed_float)
        if self._pairs and storages == {"bf16"}:
            return pack_pairs(whole)
        return pack_panels(whole, int8=self._int8)

    def vector(self, values: torch.Tensor, exact: bool = False) -> torch.Tensor:
        return values.float().contiguous()

    def run(self, forward: Callable[[], None], layout: StepLayout) -> None:
        program = self._recorded.get(forward)
        if program is None:
            self._recording = program = []
            self._narrowed.clear()
            forward()
            self._recording = None
            self._recorded[forward] = program
        self._step.place(layout)
        self._adapted = layout.rows_by_adapter()
        self._replay(program)

    def _replay(self, program: Program) -> None:
        for piece in program:
            if isinstance(piece, Tape):
                piece.run(self.threads)
            else:
                piece()

    def _record(self) -> Tape:
        """The tape to add to: the last piece of the program, or a new one after a call to oneDNN."""
        assert self._recording is not None, "outside run()"
        if self._recording and isinstance(self._recording[-1], Tape):
            return self._recording[-1]
        tape = Tape()
        self._recording.append(tape)
        return tape

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, add: bool = False) -> None:
        self._add_norm(self._record(), self._step.header, x, weight, eps, out, add)

    def _add_norm(
        self,
        tape: Tape,
        header: NDArray[np.int64],
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor,
        add: bool = False,
    ) -> None:
        arguments = [
            x.data_ptr(), _stride(x), weight.data_ptr(), out.data_ptr(), _stride(out), x.shape[1], float_bits(eps), int(add),
            *self._twin(out),
        ]  # fmt: skip
        tape.add(elementwise.rms_norm, header, arguments, (x, weight, out))

    def head_norm(self, qkv: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        heads, size = weight.shape
        arguments = [qkv.data_ptr(), _stride(qkv), weight.data_ptr(), heads, size, float_bits(eps)]
        self._record().add(elementwise.head_norm, self._step.header, arguments, (qkv, weight))

    def add_bias(self, x: torch.Tensor, bias: torch.Tensor) -> None:
        arguments = [x.data_ptr(), _stride(x), bias.data_ptr(), bias.shape[0]]
        self._record().add(elementwise.add_bias, self._step.header, arguments, (x, bias))

    def linear(self, x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool = False) -> None:
        if isinstance(weight, OneDnnMatrix):
            assert self._recording is not None, "outside run()"
            self._recording.append(lambda: weight.apply(x[: self._step.header[0]], out[: self._step.header[0]], add))
        else:
            self._add_linear(self._record(), self._step.header, x, weight, out, add)

    def _add_linear(
        self, tape: Tape, header: NDArray[np.int64], x: torch.Tensor, weight: Matrix, out: torch.Tensor, add: bool
    ) -> None:
        if isinstance(weight, PairMatrix):
            self._add_pairs(tape, header, x, weight, out, add)
            return
        assert isinstance(weight, PanelMatrix)
        rounded = x
        if any(isinstance(run, ByteMatrix) for run in weight.runs):
            rounded = self._round(tape, header, x)
        column = 0
        for run in weight.runs:
            per_task = max(1, run.panels // (self.threads * TASKS_PER_THREAD))
            source = rounded if isinstance(run, ByteMatrix) else x
            arguments = [
                source.data_ptr(), _stride(source), run.data.data_ptr(), run.groups, run.panels,
                out.data_ptr() + 4 * column, _stride(out), int(add), per_task, self._scratch.data_ptr(),
            ]  # fmt: skip
            tape.add(kernel_of(run), header, arguments, (source, run, out))
            column += run.outputs

    def _round(self, tape: Tape, header: NDArray[np.int64], x: torch.Tensor) -> torch.Tensor:
        """Where the tape rounds x to two bytes."""
        from .int8 import round_rows

        rounded = self._rounded.get(x.data_ptr())
        if rounded is None:
            rounded = self._rounded[x.data_ptr()] = torch.empty(x.shape[0], row_bytes(x.shape[1]), dtype=torch.uint8)
        arguments = [x.data_ptr(), _stride(x), rounded.data_ptr(), _stride(rounded), x.shape[1] // GROUP]
        tape.add(round_rows, header, arguments, (x, rounded))
        return rounded

    def _add_pairs(
        self, tape: Tape, header: NDArray[np.int64], x: torch.Tensor, weight: PairMatrix, out: torch.Tensor, add: bool
    ) -> None:
        from .bfloat16 import linear_pairs

        narrow = self._narrow.get(x.data_ptr())
        if narrow is None:
            narrow = self._narrow[x.data_ptr()] = torch.empty(x.shape, dtype=torch.bfloat16)
        if x.data_ptr() not in self._narrowed:
            arguments = [x.data_ptr(), _stride(x), narrow.data_ptr(), _stride(narrow), x.shape[1]]
            tape.add(elementwise.narrow, header, arguments, (x, narrow))
        self._narrowed.discard(out.data_ptr())
        per_task = max(1, weight.panels // (self.threads * TASKS_PER_THREAD))
        arguments = [
            narrow.data_ptr(), _stride(narrow), weight.data.data_ptr(), weight.inputs // 2, weight.panels,
            out.data_ptr(), _stride(out), int(add), per_task,
        ]  # fmt: skip
        tape.add(linear_pairs, header, arguments, (narrow, weight, out))

    def _twin(self, out: torch.Tensor) -> tuple[int, int]:
        """Where `out` is to be written a second time in bfloat16, and that copy's stride; zeros where nobody needs it."""
        narrow = self._narrow.get(out.data_ptr())
        if narrow is None:
            return 0, 0
        self._narrowed.add(out.data_ptr())
        return narrow.data_ptr(), _stride(narrow)

    def adapt(self, x: torch.Tensor, adapters: AdapterPairs, out: torch.Tensor) -> None:
        assert self._recording is not None, "outside run()"
        self._recording.append(lambda: adapt_rows(x, adapters, self._adapted, out))

    def rotary_write(
        self,
        qkv: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        how: Attention,
    ) -> None:
        cos, sin = tables
        keys, values = caches
        _, kv_heads, _, size = keys.shape
        arguments = [
            qkv.data_ptr(), _stride(qkv), cos.data_ptr(), sin.data_ptr(), self._step.positions.ctypes.data,
            self._step.slots.ctypes.data, keys.data_ptr(), values.data_ptr(), how.heads, kv_heads, size,
            _CACHE_STORAGE[keys.dtype], self._scratch.data_ptr(),
        ]  # fmt: skip
        self._record().add(elementwise.rotary_write, self._step.header, arguments, (qkv, tables, caches))

    def attention(
        self, qkv: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], how: Attention, out: torch.Tensor
    ) -> None:
        keys, values = caches
        step = self._step
        _, kv_heads, _, size = keys.shape
        per_thread = max(attention.TILE, shared_prefix.TILE) * (2 * size + self._columns) * 4
        if self._attention_scratch is None:
            self._attention_scratch = torch.zeros(self.threads * per_thread, dtype=torch.uint8)
            self._marks = np.zeros(self.capacity * how.heads * 2, dtype=np.float32)
        where = [
            qkv.data_ptr(), _stride(qkv), out.data_ptr(), _stride(out), keys.data_ptr(), values.data_ptr(),
            step.tables.ctypes.data, step.tables.strides[0],
        ]  # fmt: skip
        sizes = [
            how.heads, kv_heads, size, float_bits(how.scale), self._attention_scratch.data_ptr(), per_thread, self._columns,
        ]  # fmt: skip
        softcap, marks = float_bits(how.softcap or 0.0), self._marks.ctypes.data
        attend, attend_prefix = _ATTEND[keys.dtype], _ATTEND_PREFIX[keys.dtype]
        if self._pairs and keys.dtype == torch.bfloat16:
            from .bfloat16 import attend_pairs as attend
            from .bfloat16 import attend_prefix_pairs as attend_prefix
        if not how.window:
            arguments = [*where, step.prefixes.ctypes.data, *sizes, softcap, step.members.ctypes.data, marks]
            self._record().add(attend_prefix, step.header, arguments, (qkv, caches, out))
        arguments = [*where, step.items.ctypes.data, *sizes, how.window or 0, softcap, *self._twin(out), marks]
        self._record().add(attend, step.header, arguments, (qkv, caches, out))

    def silu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        self._gated(elementwise.silu_mul, gate_up, out)

    def gelu_mul(self, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        self._gated(elementwise.gelu_mul, gate_up, out)

    def _gated(self, function: Any, gate_up: torch.Tensor, out: torch.Tensor) -> None:
        arguments = [gate_up.data_ptr(), _stride(gate_up), out.data_ptr(), _stride(out), out.shape[1], *self._twin(out)]
        self._record().add(function, self._step.header, arguments, (gate_up, out))

    def mixture(self, x: torch.Tensor, experts: Experts, out: torch.Tensor) -> None:
        assert self._recording is not None, "outside run()"
        scores = self.buffer(experts.router.outputs)
        self.linear(x, experts.router, scores)
        buffers = self._expert_buffers(x.shape[1], experts)
        programs = {id(expert): self._record_expert(expert, *buffers) for expert in experts.experts}
        taken, _, _, result = buffers

        def run() -> None:
            tokens = int(self._step.header[0])
            for expert, rows, weights in choose_experts(scores[:tokens], experts):
                count = self._step.header[0] = len(rows)
                taken[:count] = x[rows]
                self._replay(programs[id(expert)])
                out.index_add_(0, rows, result[:count] * weights[:, None])
            self._step.header[0] = tokens

        self._recording.append(run)

    def _expert_buffers(self, width: int, experts: Experts) -> tuple[torch.Tensor, ...]:
        """For an expert's rows, its gate and up, their product and its result: shared by all experts of these sizes."""
        inner = experts.experts[0][0].outputs // 2
        key = (width, inner)
        if key not in self._expert_rows:
            self._expert_rows[key] = tuple(self.buffer(size) for size in (width, 2 * inner, inner, width))
        return self._expert_rows[key]

    def _record_expert(
        self, expert: tuple[Matrix, Matrix], taken: torch.Tensor, gate_up: torch.Tensor, gated: torch.Tensor,
        result: torch.Tensor,
    ) -> Program:  # fmt: skip
        outer, self._recording = self._recording, []
        self.linear(taken, expert[0], gate_up)
        self.silu_mul(gate_up, gated)
        self.linear(gated, expert[1], result)
        program, self._recording = self._recording, outer
        return program

    def call(self, function: Callable[[int], None]) -> None:
        assert self._recording is not None, "outside run()"
        self._recording.append(lambda: function(int(self._step.header[0])))

    def logits(self, x: torch.Tensor, norm: torch.Tensor, eps: float, head: Matrix) -> torch.Tensor:
        rows, width = x.shape[0], -(-head.outputs // WIDE) * WIDE
        header = np.array([rows, 0], dtype=np.int64)
        normed, out = torch.empty(rows, x.shape[1]), self._room_for_logits(rows * width).view(rows, width)
        if isinstance(head, PairMatrix):
            self._narrow[normed.data_ptr()] = torch.empty(normed.shape, dtype=torch.bfloat16)
        tape = Tape()
        self._add_norm(tape, header, x, norm, eps, normed)
        if not isinstance(head, OneDnnMatrix):
            self._add_linear(tape, header, normed, head, out, add=False)
        tape.run(self.threads)
        for copies in (self._narrow, self._rounded):
            copies.pop(normed.data_ptr(), None)
        if isinstance(head, OneDnnMatrix):
            head.apply(normed, out[:, : head.outputs], add=False)
        return out[:, : head.outputs]

    def _room_for_logits(self, count: int) -> torch.Tensor:
        """float32 [count], from the beginning of a cache line on. Megabytes that the allocator would give back to the system and
        take anew, page by page, at every step; numpy also asks for large pages."""
        if len(self._logits) < count:
            room = np.empty(count + PANEL, dtype=np.float32)
            first = -room.ctypes.data % (4 * PANEL) // 4
            self._logits = room[first : first + count]
        return torch.from_numpy(self._logits[:count])

    @property
    def draws_on_device(self) -> Callable[[torch.Tensor, DrawSettings], torch.Tensor] | None:
        return None

    def draw(self, logits: torch.Tensor, settings: DrawSettings) -> list[int | None]:
        return self._drawing.draw(logits, settings)


def fits(widths: Sequence[int], head_dim: int) -> bool:
    """True when these kernels can serve a model whose matrices have inputs of such widths."""
    return all(width % GROUP == 0 for width in widths) and head_dim % PANEL == 0


def _stride(tensor: torch.Tensor) -> int:
    """Bytes from one row to the next."""
    return tensor.stride(0) * tensor.element_size()
