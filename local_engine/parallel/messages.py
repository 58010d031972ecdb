"""What rank 0 and the other ranks say to each other: the frames of ../messages.py over a socketpair for each of them.

Down: `Join` first, then in rank 0's order everything that all ranks have to do together. Up: `Here` before and `Done` after
`Load`, `LoadAdapter` and `UnloadAdapter`, and meanwhile a `Pulse` twice a second.
"""

from __future__ import annotations

import msgspec

from ..config import EngineConfig
from ..messages import LoadAdapter, UnloadAdapter


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """`port`: of the store on this machine, where the ranks find each other. `config` names the device."""

    rank: int
    port: int
    config: EngineConfig


class Load(msgspec.Struct, frozen=True, array_like=True, tag="load"):
    """Another model may be loaded later, in place of this one."""

    config: EngineConfig


class Work(msgspec.Struct, frozen=True, array_like=True):
    """A sequence's share of a step, as far as the pass through the layers needs it (batch.py). Its block table is the first
    `kept` blocks of the one in the step before, and then `blocks` (tables.py)."""

    sequence: int
    token_ids: list[int]
    start: int
    kept: int
    blocks: list[int]
    adapter: int | None


class Step(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    works: list[Work]


class Logits(msgspec.Struct, frozen=True, array_like=True, tag="logits"):
    """This rank's part of the vocabulary, for rows of the last step."""

    rows: list[int]


class Here(msgspec.Struct, frozen=True, array_like=True, tag="here"):
    """Has started, and can join."""


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    error: str | None


class Pulse(msgspec.Struct, frozen=True, array_like=True, tag="pulse"):
    entered: int
    """Exchanges within steps that this rank has begun (group.py)."""


class Broken(msgspec.Struct, frozen=True, array_like=True, tag="broken"):
    """The rank cannot go on."""

    message: str


ToRank = Join | Load | Step | Logits | LoadAdapter | UnloadAdapter
FromRank = Here | Done | Pulse | Broken
