"""How far a journal has been shipped: one small file per process folder, replaced as a whole.

Everything before `through` is committed, except the attempts that have no outcome yet. Of those, the ones opened in older
segments are `carried`; the others are found again by reading on from (`segment`, `offset`), the first of them. The file is
written only after the commit, so it can be late and never early: what is read again meets its own row and changes nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from gateway.metering.records import AttemptOpened
from gateway.metering.segments import POSITION_NAME


class Position(msgspec.Struct, frozen=True):
    """`through` is `through_offset` in `segment`, at or behind `offset`; an outcome in between whose attempt is missing belongs
    to a row that is committed. `complete_us` is when the journal of a dead process was shipped to its end, microseconds since
    the epoch.
    """

    segment: int = 0
    offset: int = 0
    through_offset: int = 0
    carried: tuple[AttemptOpened, ...] = ()
    complete_us: int | None = None


_decoder = msgspec.msgpack.Decoder(Position)


def read_position(folder: Path) -> Position:
    """The stored position; the very start when there is none or it is no position (a replay is harmless)."""
    try:
        return _decoder.decode((folder / POSITION_NAME).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return Position()


def write_position(folder: Path, position: Position) -> None:
    """Replaces the stored position; when this returns, it is on the disk. Raises `OSError`."""
    temporary = folder / f".{POSITION_NAME}"
    with temporary.open("wb") as file:
        file.write(msgspec.msgpack.encode(position))
        file.flush()
        os.fdatasync(file.fileno())
    temporary.rename(folder / POSITION_NAME)
