"""Brings attempts and outcomes together: what the recorder holds between reading a journal and writing rows."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from gateway.ids import time_us_of
from gateway.metering.position import Position
from gateway.metering.reader import Located, Place
from gateway.metering.records import AttemptOpened, RequestClosed


class Paired(NamedTuple):
    """A request to be written: its attempts in order, and its outcome (None: the process died before there was one)."""

    opened: tuple[AttemptOpened, ...]
    closed: RequestClosed | None

    @property
    def request_id(self) -> bytes:
        return self.opened[0].request_id


class Stray(NamedTuple):
    """A payload that belongs to no row: an outcome without an attempt, or no record of this release."""

    payload: bytes
    request_id: bytes | None
    reason: str


class Pairing:
    """The attempts of one journal that have no outcome yet, in the order in which they were opened."""

    def __init__(self, carried: tuple[AttemptOpened, ...] = ()) -> None:
        self._pending: dict[bytes, list[tuple[AttemptOpened, int, int]]] = {}
        """The attempts of each request, with the segment and the offset of their records."""
        for opened in carried:
            self._pending.setdefault(opened.request_id, []).append((opened, 0, 0))

    def __len__(self) -> int:
        return len(self._pending)

    def feed(self, located: Located) -> Paired | Stray | None:
        """What `located` completes, if it completes something."""
        record = located.record
        if isinstance(record, AttemptOpened):
            attempts = self._pending.get(record.request_id)
            if attempts is None:
                self._pending[record.request_id] = [(record, located.segment, located.offset)]
            elif all(record.sequence != known.sequence for known, _, _ in attempts):
                attempts.append((record, located.segment, located.offset))
            return None
        if record is None:
            return Stray(located.payload, None, "not a record of this release")
        found = self._pending.pop(record.request_id, None)
        if found is None:
            return Stray(located.payload, record.request_id, "an outcome without an opened attempt")
        return Paired(tuple([opened for opened, _, _ in found]), record)

    def lost(self) -> list[Paired]:
        """Everything that will never have an outcome, now that the writer is dead. Empties the pairing."""
        pending, self._pending = self._pending, {}
        return [Paired(tuple([opened for opened, _, _ in found]), None) for found in pending.values()]

    def position(self, place: Place) -> Position:
        """Where a later reader has to start, when everything completed before `place` is committed."""
        carried: list[AttemptOpened] = []
        first = place.offset
        for found in self._pending.values():
            for opened, segment, offset in found:
                if segment < place.segment:
                    carried.append(opened)
                else:
                    first = min(first, offset)
        return Position(place.segment, first, place.offset, tuple(carried))

    def oldest_id_us(self) -> int | None:
        """The time inside the oldest id that waits for its outcome."""
        return min((time_us_of(UUID(bytes=request_id)) for request_id in self._pending), default=None)

    def oldest_us(self) -> int | None:
        """When the oldest attempt without an outcome was opened."""
        first = next(iter(self._pending.values()), None)
        return None if first is None else first[0][0].at_us
