"""The wallet of a team over a month, for its statement: what was there, what came, what went, what is left."""

from __future__ import annotations

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.money import Money
from billing.records import MoneyView
from billing.statement_documents import Balances
from billing.teams import TeamRow
from billing.wallet_tables import wallet_entries, wallets

TOP_UPS = ("top_up", "code")


async def balances_of(connection: AsyncConnection, team: TeamRow, start_us: int, end_us: int) -> Balances:
    """Opening + top-ups + usage + other = closing, to the last nano. Folded usage belongs to its quarter-hour, everything else
    to the moment of its entry. All null for a team that has no wallet in its settlement currency."""
    own = (wallets.c.team_id == team.id, wallets.c.currency == team.settlement_currency)
    if await connection.scalar(select(wallets.c.team_id).where(*own)) is None:
        return Balances()
    entries = wallet_entries.c
    moment = func.coalesce(entries.bucket_us, entries.at_us)
    group = case(
        (moment < start_us, "opening"),
        (entries.kind.in_(TOP_UPS), "top_ups"),
        (entries.kind == "usage", "usage"),
        else_="other",
    ).label("part")
    query = (
        select(group, func.sum(entries.amount_nano).label("nano"))
        .where(entries.team_id == team.id, entries.currency == team.settlement_currency, moment < end_us)
        .group_by(group)
    )
    sums = {row.part: int(row.nano) for row in await connection.execute(query)}

    def view(nano: int) -> MoneyView:
        return MoneyView(Money(team.settlement_currency, nano).amount, team.settlement_currency)

    return Balances(
        opening=view(sums.get("opening", 0)),
        top_ups=view(sums.get("top_ups", 0)),
        usage=view(sums.get("usage", 0)),
        other=view(sums.get("other", 0)),
        closing=view(sum(sums.values())),
    )
