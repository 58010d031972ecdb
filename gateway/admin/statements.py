"""Statements per team and month: drafted, issued, credited; as JSON, CSV, FOCUS rows or a page to print."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from litestar import Controller, Response, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import Meta, Struct

from billing.credit_notes import credit_part, credit_statement
from billing.focus import focus_csv
from billing.money import INT64_MAX, Money
from billing.records import MoneyView
from billing.statement_csv import statement_csv
from billing.statement_documents import StatementDocument, number_text
from billing.statement_focus import statement_focus
from billing.statements import (
    StatementRow,
    broken_links,
    discard_draft,
    draft_statement,
    get_statement,
    issue_statement,
    list_statements,
)
from billing.teams import get_team
from billing.times import DAY_US, first_id_at, format_time, now_us
from billing.watermarks import list_watermarks
from gateway.admin.failures import conflict, missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, Limit, after_id, cut
from gateway.admin.services import Injected
from gateway.admin.statement_page import HEADERS, statement_page
from gateway.admin.texts import Decimal, Month, Text, moment
from gateway.admin.wallets import ADMIN, Actor, Reason
from gateway.metering.dead_letters import count_unresolved

Format = Annotated[
    Literal["json", "csv", "focus", "html"],
    QueryParameter(description="json, csv (a line a row), focus (FOCUS 1.2 rows as CSV) or html (a page to print)"),
]


class DraftStatement(Struct, frozen=True, forbid_unknown_fields=True):
    month: Month


class IssueStatement(Struct, frozen=True, forbid_unknown_fields=True):
    """`without_journals` gives up journals that will never be shipped; the statement names them. `without_set_aside` issues
    although requests of the month are set aside as dead letters; what becomes of them stands on the next."""

    without_journals: list[Text] = []
    without_set_aside: bool = False


class CreditNote(Struct, frozen=True, forbid_unknown_fields=True):
    """Over the whole statement, unless it names the positions of lines (credited with what is left of them) or an amount."""

    reason: Reason
    lines: Annotated[list[int], Meta(max_length=1000)] = []
    amount: Decimal | None = None
    actor: Actor = ADMIN


class NoFields(Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object."""


class StatementSummary(Struct, frozen=True):
    """`number` and `hash` are null for a draft; `credited_by` is the id of the credit note that took it back, `credited` what
    notes over parts of it took off its payable amount."""

    id: int
    team_id: str
    kind: str
    state: str
    month: str
    number: str | None
    corrects_id: int | None
    credited_by: int | None
    credited: MoneyView
    settled: MoneyView
    payable: MoneyView
    saving: MoneyView
    hash: str | None
    created_at: str | None
    issued_at: str | None


class StatementView(StatementSummary, frozen=True):
    document: StatementDocument


class StatementPage(Struct, frozen=True):
    data: list[StatementSummary]
    next_cursor: str | None


class Discarded(Struct, frozen=True):
    id: int
    discarded: bool


class JournalView(Struct, frozen=True):
    """Every request older than `watermark` that this journal holds is in the books; `complete`: no other comes."""

    journal: str
    watermark: str
    complete: bool
    updated_at: str


class Journals(Struct, frozen=True):
    """`broken` names issued documents whose hash or number does not follow: always empty, unless somebody changed the database
    behind our back."""

    data: list[JournalView]
    broken: list[str]


def _id(statement_id: int) -> int:
    """A row id of a path; 404 for a number that no row can have."""
    if not 0 < statement_id <= INT64_MAX:
        raise missing("statement", statement_id)
    return statement_id


class StatementsController(Controller):
    path = "/statements"
    tags = ("statements",)

    @get(summary="How far the journals are, and whether the chain of issued documents is whole")
    async def closing(self, rooms: Injected) -> Journals:
        async with rooms.read() as connection:
            marks = await list_watermarks(connection, now_us() - 40 * DAY_US)
            broken = await broken_links(connection)
        data = [
            JournalView(
                mark.journal,
                format_time(mark.watermark_us),
                mark.complete_at_us is not None,
                format_time(mark.updated_at_us),
            )
            for mark in marks
        ]
        return Journals(data, broken)

    @post("/{team_id:str}", summary="Draft a month's statement, or draft it again")
    async def draft(self, team_id: FromPath[str], data: JSONBody[DraftStatement], rooms: Injected) -> StatementView:
        async with rooms.write() as write:
            return rooms.done(_view(await draft_statement(write.connection, team_id, data.month)))

    @get("/{team_id:str}", summary="A team's drafts, statements and credit notes")
    async def index(
        self,
        team_id: FromPath[str],
        rooms: Injected,
        month: Annotated[str | None, QueryParameter(max_length=7)] = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> StatementPage:
        after = after_id(cursor)
        async with rooms.read() as connection:
            if await get_team(connection, team_id) is None:
                raise missing("team", team_id[:100])
            rows = await list_statements(connection, team_id, month=month, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return StatementPage([_summary(row) for row in page], next_cursor)

    @get("/{team_id:str}/{statement_id:int}", summary="One statement, in one of four formats")
    async def one(
        self, team_id: FromPath[str], statement_id: FromPath[int], rooms: Injected, format: Format = "json"
    ) -> Response[Any]:
        async with rooms.read() as connection:
            row = await get_statement(connection, team_id, _id(statement_id))
            if format == "focus":
                return _file(focus_csv(await statement_focus(connection, row)), row, "focus.csv")
        if format == "csv":
            return _file(statement_csv(row.document), row, "csv")
        if format == "html":
            return Response(statement_page(row), media_type="text/html", headers=HEADERS)
        return Response(_view(row))

    @post("/{team_id:str}/{statement_id:int}/issue", summary="Issue a draft: numbered, hashed, never changed again")
    async def issue(
        self, team_id: FromPath[str], statement_id: FromPath[int], data: JSONBody[IssueStatement], rooms: Injected
    ) -> StatementView:
        async with rooms.write() as write:
            draft = await get_statement(write.connection, team_id, _id(statement_id))
            rooms.editing(_summary(draft))
            if not data.without_set_aside:
                span = first_id_at(draft.start_us), first_id_at(draft.end_us)
                letters = await count_unresolved(write.connection, *span)
                if letters:
                    raise conflict(
                        f"without_set_aside: {letters} request(s) of the month are set aside as dead letters; see to their cause "
                        "and run `metergate journal replay`, or issue without them",
                        "without_set_aside",
                    )
            issued = await issue_statement(
                write.connection, team_id, _id(statement_id), without_journals=data.without_journals
            )
            return rooms.done(_view(issued))

    @post(
        "/{team_id:str}/{statement_id:int}/credit-note",
        summary="Credit an issued statement: the whole, lines of it, or an amount",
    )
    async def credit(
        self, team_id: FromPath[str], statement_id: FromPath[int], data: JSONBody[CreditNote], rooms: Injected
    ) -> StatementView:
        async with rooms.write() as write:
            rooms.editing(_summary(await get_statement(write.connection, team_id, _id(statement_id))))
            of, said = (write.connection, team_id, _id(statement_id)), rooms.actor(data.actor)
            if data.lines or data.amount is not None:
                note = await credit_part(*of, reason=data.reason, actor=said, lines=data.lines, amount=data.amount)
            else:
                note = await credit_statement(*of, reason=data.reason, actor=said)
            return rooms.done(_view(note))

    @post("/{team_id:str}/{statement_id:int}/discard", summary="Throw a draft away")
    async def discard(
        self, team_id: FromPath[str], statement_id: FromPath[int], data: JSONBody[NoFields], rooms: Injected
    ) -> Discarded:
        async with rooms.write() as write:
            rooms.editing(_summary(await get_statement(write.connection, team_id, _id(statement_id))))
            await discard_draft(write.connection, team_id, _id(statement_id))
            return rooms.done(Discarded(statement_id, True))


def _file(text: str, row: StatementRow, ending: str) -> Response[str]:
    name = f"{row.document.number or f'draft-{row.id}'}-{row.month}.{ending}"
    return Response(
        text,
        media_type="text/csv",
        headers={"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"},
    )


def _summary(row: StatementRow) -> StatementSummary:
    return StatementSummary(**_fields(row))


def _view(row: StatementRow) -> StatementView:
    return StatementView(**_fields(row), document=row.document)


def _fields(row: StatementRow) -> dict[str, Any]:
    totals = row.document.totals
    return {
        "id": row.id,
        "team_id": row.team_id,
        "kind": row.kind,
        "state": row.state,
        "month": row.month,
        "number": None if row.number is None else number_text(row.number),
        "corrects_id": row.corrects_id,
        "credited_by": row.credited_by,
        "credited": MoneyView.of(Money(row.document.currency, row.credited_nano)),
        "settled": totals.settled,
        "payable": totals.payable,
        "saving": totals.saving,
        "hash": row.hash,
        "created_at": moment(row.created_at_us),
        "issued_at": moment(row.issued_at_us),
    }
