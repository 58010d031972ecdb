"""Usage into wallets: rows that an insert returned as new debit their team's wallet, in its transaction.

Folded per wallet and UTC quarter-hour of the requests' ids, like the rollups: any order, duplicate or batching of the same
requests leaves the same entries, and rows = rollup = wallet to the last nano.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from billing.records import UsageRecord
from billing.times import quarter_of, time_us_of
from billing.wallets import WalletEvent, note_levels

_GROW: Final = (
    " ON CONFLICT (team_id, currency, bucket_us) DO UPDATE SET "
    "amount_nano = wallet_entries.amount_nano + excluded.amount_nano, "
    "requests = wallet_entries.requests + excluded.requests"
)
_MOVE: Final = (
    " ON CONFLICT (team_id, currency) DO UPDATE SET balance_nano = wallets.balance_nano + excluded.balance_nano"
)
_ENTRY: Final = "INSERT INTO wallet_entries (team_id, currency, bucket_us, amount_nano, requests, at_us, kind) "
_WALLET: Final = "INSERT INTO wallets (team_id, currency, balance_nano, is_low) "
_SQLITE: Final = (
    f"{_ENTRY}VALUES (?1, ?2, ?3, ?4, ?5, ?3, 'usage'){_GROW}",
    f"{_WALLET}VALUES (?1, ?2, ?3, 0){_MOVE}",
)
_POSTGRESQL: Final = (
    f"{_ENTRY}SELECT t, c, b, a, r, b, 'usage' FROM "
    f"unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) AS u (t, c, b, a, r){_GROW}",
    f"{_WALLET}SELECT t, c, a, FALSE FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u (t, c, a){_MOVE}",
)


async def debit(connection: AsyncConnection, records: Sequence[UsageRecord]) -> tuple[WalletEvent, ...]:
    """Debit what these new rows settled; the low-balance events that came of it. Unpriced rows and zeros move nothing.

    Wallets are taken last and in one order by every writer, so that none waits for another in a circle.
    """
    folded: dict[tuple[str, str, int], list[int]] = {}
    for record in records:
        settled = record.rated.settled
        if settled is None or settled.nano == 0:
            continue
        key = (record.team_id, settled.currency, quarter_of(time_us_of(record.id)))
        cell = folded.get(key)
        if cell is None:
            cell = folded[key] = [0, 0]
        cell[0] -= settled.nano
        cell[1] += -1 if record.kind == "reversal" else 1
    if not folded:
        return ()
    totals: dict[tuple[str, str], int] = {}
    for (team_id, currency, _), (nano, _) in folded.items():
        totals[team_id, currency] = totals.get((team_id, currency), 0) + nano
    entries: list[tuple[Any, ...]] = [(*key, *folded[key]) for key in sorted(folded)]
    moves: list[tuple[Any, ...]] = [(*key, totals[key]) for key in sorted(totals)]
    if connection.dialect.name == "sqlite":
        await connection.exec_driver_sql(_SQLITE[1], moves)
        await connection.exec_driver_sql(_SQLITE[0], entries)
    else:
        await connection.exec_driver_sql(_POSTGRESQL[1], _columns(moves))
        await connection.exec_driver_sql(_POSTGRESQL[0], _columns(entries))
    return await note_levels(connection, {team_id for team_id, _ in totals})


def _columns(rows: list[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*rows, strict=True)))
