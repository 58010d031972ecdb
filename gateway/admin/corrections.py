"""Putting a usage row right: taken back, or rated again with the books as they are now. Rows are added and linked."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from litestar import Controller, get, post
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from billing.corrections import correctable, reverse
from billing.errors import Conflict, InvalidQuery
from billing.ledger import UsageView, usage_row
from billing.reads import correction_chain, parse_request_id
from billing.records import CorrectionView
from billing.rerating import rerate
from gateway.admin.failures import missing
from gateway.admin.rerating import price_lists
from gateway.admin.services import Injected
from gateway.admin.wallets import ADMIN, Actor, Reason
from gateway.ids import new_request_id


class PostCorrection(Struct, frozen=True, forbid_unknown_fields=True):
    """`rerate`: a reversal, and a new row at the request's own time with today's prices, rates and terms. `reverse`: the reversal
    alone; the request then costs nothing."""

    action: Literal["rerate", "reverse"]
    reason: Reason
    actor: Actor = ADMIN


class CorrectionAnswer(CorrectionView, frozen=True):
    """The linked rows, whole."""

    rows: list[UsageView]


class CorrectionList(Struct, frozen=True):
    data: list[CorrectionView]


class CorrectionsController(Controller):
    path = "/usage/requests/{request_id:str}/corrections"
    tags = ("usage",)

    @post(summary="Reverse a request, or rate it again")
    async def create(
        self, request_id: FromPath[str], data: JSONBody[PostCorrection], rooms: Injected
    ) -> CorrectionAnswer:
        original, ids = _identifier(request_id), (new_request_id(), new_request_id())
        async with rooms.book() as connection:
            rooms.editing(await usage_row(connection, original))
            actor = rooms.actor(data.actor)
            if data.action == "rerate":
                await rerate(
                    connection,
                    original,
                    ids,
                    reason=data.reason,
                    actor=actor,
                    price_list_of=price_lists(rooms),
                )
            else:
                await correctable(connection, original)
                if not await reverse(connection, original, ids[0], reason=data.reason, actor=actor):
                    raise Conflict("id: it was put right at the same moment by somebody else", field="id")
            (link,) = await correction_chain(connection, original)
            rows = [await usage_row(connection, UUID(each)) for each in (link.reversal, link.replacement) if each]
            return rooms.done(
                CorrectionAnswer(
                    link.original,
                    link.reversal,
                    link.replacement,
                    link.reason,
                    link.actor,
                    link.recorded_at,
                    [row for row in rows if row is not None],
                )
            )

    @get(summary="How a request was put right, and its replacement, and so on")
    async def index(self, request_id: FromPath[str], rooms: Injected) -> CorrectionList:
        original = _identifier(request_id)
        async with rooms.read() as connection:
            if await usage_row(connection, original) is None:
                raise missing("request", original)
            return CorrectionList(await correction_chain(connection, original))


def _identifier(text: str) -> UUID:
    try:
        return parse_request_id(text, "id")
    except InvalidQuery as error:
        raise missing("request", text[:100]) from error
