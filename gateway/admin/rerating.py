"""Rating a past range again: looked at first, then entered as linked corrections."""

from __future__ import annotations

from collections.abc import Callable

from litestar import Controller, post
from litestar.params import JSONBody
from msgspec import Struct

from billing.books import load_books
from billing.bulk_rerating import RerateRange, Rerating, apply_rerating, look, planned
from billing.times import parse_time
from gateway.admin.services import Injected, Rooms
from gateway.admin.texts import Moment, Text
from gateway.admin.wallets import ADMIN, Actor, Reason
from gateway.ids import new_request_id

ROWS_AT_ONCE = 50
"""So many rows are put right in one transaction: whoever waits for the writer's place gets it in between."""


class AskRerating(Struct, frozen=True, forbid_unknown_fields=True):
    """Requests made from `start` (inside) to `end` (outside), of one team, model or provider where one is named."""

    start: Moment
    end: Moment
    team_id: Text | None = None
    model: Text | None = None
    provider: Text | None = None


class ApplyRerating(AskRerating, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`plan` is the name of what was looked at: exactly that is entered."""

    plan: Text
    reason: Reason
    actor: Actor = ADMIN


class Rerated(Struct, frozen=True):
    """`corrected` rows were put right, each by a reversal and a new row; `skipped`: somebody else was faster.

    In the audit log: so many by the end of the entry's own transaction.
    """

    plan: str
    corrected: int
    skipped: int


class ReratingController(Controller):
    path = "/usage/rerating"
    tags = ("usage",)

    @post(status_code=200, summary="What rating a range again would change: a table of differences. Nothing is written")
    async def look(self, data: JSONBody[AskRerating], rooms: Injected) -> Rerating:
        async with rooms.read() as connection:
            return await look(connection, _range(data), await load_books(connection), price_lists(rooms))

    @post("/apply", summary="Enter what was looked at as corrections")
    async def apply(self, data: JSONBody[ApplyRerating], rooms: Injected) -> Rerated:
        async with rooms.read() as connection:
            await rooms.refuse_second(connection)
            books = await load_books(connection)
            changes = await planned(connection, _range(data), books, price_lists(rooms), data.plan)
        corrected = 0
        for end in range(ROWS_AT_ONCE, len(changes) + ROWS_AT_ONCE, ROWS_AT_ONCE):
            async with rooms.part() if end < len(changes) else rooms.book() as connection:
                corrected += await apply_rerating(
                    connection,
                    changes[end - ROWS_AT_ONCE : end],
                    books,
                    price_lists(rooms),
                    new_request_id,
                    reason=data.reason,
                    actor=rooms.actor(data.actor),
                )
                done = rooms.done(Rerated(data.plan, corrected, min(end, len(changes)) - corrected))
        return done


def _range(data: AskRerating) -> RerateRange:
    return RerateRange(
        parse_time(data.start, "start"), parse_time(data.end, "end"), data.team_id, data.model, data.provider
    )


def price_lists(rooms: Rooms) -> Callable[[str], str]:
    """The price list of a provider as it is configured now; its own name when it is not configured any more."""
    providers = rooms.services.router.providers
    return lambda provider: providers[provider].price_list if provider in providers else provider
