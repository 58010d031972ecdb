"""The audit log as operators read it, newest first, and its check."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Controller, get
from litestar.params import QueryParameter
from msgspec import Struct

from gateway.admin.audit import Entry, list_entries, verify
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, RowId, cut, decode_cursor
from gateway.admin.services import Injected
from gateway.admin.texts import moment, moment_us

Filter = Annotated[str | None, QueryParameter(max_length=500)]


class EntryView(Struct, frozen=True):
    """`action` is the route, `target` what it was asked of; `before` and `after` are the views that the API showed."""

    sequence: int
    at: str | None
    actor: str
    role: str
    address: str | None
    action: str
    target: str
    before: msgspec.Raw | None
    after: msgspec.Raw | None
    hash: str


class AuditPage(Struct, frozen=True):
    data: list[EntryView]
    next_cursor: str | None


class ChainView(Struct, frozen=True):
    """`whole` says that no entry was changed, removed or slipped in. Keep `hash` elsewhere: it stands for all up to `entries`."""

    whole: bool
    entries: int
    hash: str
    broken: str | None


class AuditController(Controller):
    path = "/audit"
    tags = ("audit",)

    @get(summary="Every admin action, newest first")
    async def index(
        self,
        rooms: Injected,
        actor: Filter = None,
        target: Filter = None,
        start: Filter = None,
        end: Filter = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> AuditPage:
        async with rooms.read() as connection:
            rows = await list_entries(
                connection,
                actor=actor,
                target=target,
                start_us=moment_us(start, "start"),
                end_us=moment_us(end, "end"),
                before=decode_cursor(cursor, RowId),
                limit=limit + 1,
            )
        page, next_cursor = cut(rows, limit, lambda row: row.sequence)
        return AuditPage([_view(row) for row in page], next_cursor)

    @get("/check", summary="Read the whole chain and say whether it holds")
    async def check(self, rooms: Injected) -> ChainView:
        async with rooms.read() as connection:
            chain = await verify(connection)
        return ChainView(chain.broken is None, chain.entries, chain.hash, chain.broken)


def _view(entry: Entry) -> EntryView:
    return EntryView(
        entry.sequence,
        moment(entry.at_us),
        entry.actor,
        entry.role,
        entry.address,
        entry.action,
        entry.target,
        _raw(entry.before),
        _raw(entry.after),
        entry.hash,
    )


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
