"""Redemption codes, in batches. The codes themselves are in the answer to their making and nowhere else."""

from __future__ import annotations

from typing import Annotated

from litestar import Controller, get, post
from litestar.params import FromPath, JSONBody
from msgspec import Meta, Struct

from billing.money import INT64_MAX, NANO, format_scaled
from billing.redemption import MAX_CODES, Batch, Code, create_codes, end_batch, get_batch, list_batches, list_codes
from gateway.admin.failures import missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, IdText, Limit, after_id, cut, decode_cursor
from gateway.admin.services import Injected
from gateway.admin.texts import Currency, Decimal, Moment, Note, moment, moment_us
from gateway.admin.wallets import ADMIN, Actor


class CreateCodes(Struct, frozen=True, forbid_unknown_fields=True):
    """`count` codes worth `amount` each. `redeem_until` ends their redemption, `credit_expires_at` the credit that they gave."""

    amount: Decimal
    currency: Currency
    count: Annotated[int, Meta(ge=1, le=MAX_CODES)] = 1
    redeem_until: Moment | None = None
    credit_expires_at: Moment | None = None
    note: Note | None = None
    actor: Actor = ADMIN


class BatchView(Struct, frozen=True):
    id: int
    amount: str
    currency: str
    count: int
    redeemed: int
    redeem_until: str | None
    credit_expires_at: str | None
    note: str | None
    actor: str
    created_at: str | None
    ended_at: str | None


class NewBatch(BatchView, frozen=True):
    """`codes` are shown now and never again."""

    codes: list[str]


class BatchPage(Struct, frozen=True):
    data: list[BatchView]
    next_cursor: str | None


class CodeView(Struct, frozen=True):
    """`hint` is the end of the code."""

    hint: str
    team_id: str | None
    redeemed_at: str | None
    entry_id: int | None


class CodePage(Struct, frozen=True):
    data: list[CodeView]
    next_cursor: str | None


class RedemptionCodesController(Controller):
    path = "/redemption-codes"
    tags = ("wallets",)

    @post(summary="Make a batch of codes, shown once")
    async def create(self, data: JSONBody[CreateCodes], rooms: Injected) -> NewBatch:
        redeem_until_us = moment_us(data.redeem_until, "redeem_until")
        credit_expires_at_us = moment_us(data.credit_expires_at, "credit_expires_at")
        async with rooms.book() as connection:
            batch, codes = await create_codes(
                connection,
                count=data.count,
                amount=data.amount,
                currency=data.currency,
                actor=rooms.actor(data.actor),
                redeem_until_us=redeem_until_us,
                credit_expires_at_us=credit_expires_at_us,
                note=data.note,
            )
            rooms.done(_batch(batch), shown_once=True)
        return NewBatch(*_fields(batch), codes)

    @get(summary="List batches")
    async def index(self, rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> BatchPage:
        after = after_id(cursor)
        async with rooms.read() as connection:
            rows = await list_batches(connection, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return BatchPage([_batch(row) for row in page], next_cursor)

    @get("/{batch_id:int}", summary="One batch")
    async def one(self, batch_id: FromPath[int], rooms: Injected) -> BatchView:
        async with rooms.read() as connection:
            batch = await get_batch(connection, batch_id) if 0 < batch_id <= INT64_MAX else None
        if batch is None:
            raise missing("batch", batch_id)
        return _batch(batch)

    @get("/{batch_id:int}/codes", summary="Which codes of a batch were redeemed, by whom and when")
    async def codes(
        self, batch_id: FromPath[int], rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT
    ) -> CodePage:
        after = decode_cursor(cursor, IdText) or ""
        async with rooms.read() as connection:
            if not 0 < batch_id <= INT64_MAX or await get_batch(connection, batch_id) is None:
                raise missing("batch", batch_id)
            rows = await list_codes(connection, batch_id, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.digest)
        return CodePage([_code(row) for row in page], next_cursor)

    @post("/{batch_id:int}/end", status_code=200, summary="End a batch: what is not redeemed yet never will be")
    async def end(self, batch_id: FromPath[int], rooms: Injected) -> BatchView:
        if batch_id > INT64_MAX:
            raise missing("batch", batch_id)
        async with rooms.book() as connection:
            before = await get_batch(connection, batch_id)
            rooms.editing(None if before is None else _batch(before))
            return rooms.done(_batch(await end_batch(connection, batch_id)))


def _fields(
    batch: Batch,
) -> tuple[int, str, str, int, int, str | None, str | None, str | None, str, str | None, str | None]:
    return (
        batch.id,
        format_scaled(batch.amount_nano, NANO),
        batch.currency,
        batch.codes,
        batch.redeemed,
        moment(batch.redeem_until_us),
        moment(batch.credit_expires_at_us),
        batch.note,
        batch.actor,
        moment(batch.created_at_us),
        moment(batch.ended_at_us),
    )


def _batch(batch: Batch) -> BatchView:
    return BatchView(*_fields(batch))


def _code(code: Code) -> CodeView:
    return CodeView(code.hint, code.team_id, moment(code.redeemed_at_us), code.entry_id)
