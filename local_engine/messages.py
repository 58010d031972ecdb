"""What the HTTP process and the core process say to each other: msgpack frames over a UNIX socketpair.

A frame is a 4-byte little-endian length and one message. The first frame to the core is `Start`; the core answers with
`Progress` lines, then `Ready` or `Failed`; from then on it sends one `StepDone` per step or batch of aborts,
and a `Beat` twice a second.
Every added sequence gets exactly one update with a finish reason, unless the core dies.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from .config import EngineConfig
from .sampling_params import SamplingParams
from .sequence import FinishReason
from .token_logprobs import TokenLogprobs

HEADER = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    config: EngineConfig


class AddSequence(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    id: int
    prompt: list[int]
    params: SamplingParams
    choice_index: int
    salt: bytes
    priority: int
    leader: int | None
    adapter: str | None = None


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    id: int
    keep: int | None
    """Output tokens that count; None: all. Later ones are not cached."""


class ResetPrefixCache(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    pass


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="load_adapter"):
    name: str
    folder: str


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag="unload_adapter"):
    name: str


class AdapterDone(msgspec.Struct, frozen=True, array_like=True, tag="adapter"):
    """The answer to each of the two, in their order."""

    error: str | None


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    text: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    num_blocks: int
    block_size: int
    vocab_size: int
    max_model_len: int
    load_us: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """Why the core cannot start, or cannot go on."""

    message: str


class Update(msgspec.Struct, frozen=True, array_like=True):
    """News of one sequence: its next tokens, its end, or both."""

    id: int
    tokens: list[int]
    compute_us: int
    """All compute time so far."""
    cached_tokens: int
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    logprobs: list[TokenLogprobs] = []
    """Of `tokens`, where the request asks for them."""
    prompt_logprobs: list[TokenLogprobs] = []
    """Of further tokens of the prompt, in their order from the second one on."""
    embedding: list[float] = []
    """With the end of a sequence that asks for one: its vector, not normalised."""


class Stats(msgspec.Struct, frozen=True, array_like=True):
    """State after a step; counters since start."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    num_blocks: int = 0
    steps: int = 0
    busy_us: int = 0
    """Wall time of all steps; equals the sum of `compute_us` over all sequences."""
    execute_us: int = 0
    """The part of it inside the model runner."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    failed: int = 0
    drafted: int = 0
    """Tokens that were guessed."""
    accepted: int = 0
    """Guesses that held."""


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    step_ms: int
    """How long the step in progress has taken; 0 between steps."""


class StepDone(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    updates: list[Update]
    stats: Stats


ToCore = Start | AddSequence | Abort | ResetPrefixCache | LoadAdapter | UnloadAdapter
FromCore = Progress | Ready | Failed | Beat | StepDone | AdapterDone

_encoder = msgspec.msgpack.Encoder()


def frame(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


@dataclass(slots=True)
class FrameBuffer:
    """Cuts a byte stream into message bodies."""

    _data: bytearray

    def feed(self, data: bytes) -> list[bytes]:
        self._data += data
        bodies = []
        at = 0
        while len(self._data) - at >= HEADER.size:
            (length,) = HEADER.unpack_from(self._data, at)
            end = at + HEADER.size + length
            if len(self._data) < end:
                break
            bodies.append(bytes(self._data[at + HEADER.size : end]))
            at = end
        del self._data[:at]
        return bodies
