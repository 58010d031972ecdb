"""What must hold after any run, however it was disturbed: the witnesses' word against the books."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from tests.gateway.metering.books import BooksDatabase


@dataclass(slots=True)
class Witness:
    """What one writer said before it died. A line that was cut by the kill was never said."""

    opened: set[str] = field(default_factory=set)
    closed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, output: bytes) -> Witness:
        witness = cls()
        for line in output[: output.rfind(b"\n") + 1].decode().splitlines():
            kind, request_id, *tokens = line.split()
            if kind == "o":
                witness.opened.add(request_id)
            else:
                witness.closed[request_id] = int(tokens[0])
        return witness


def violations(database: BooksDatabase, witnesses: list[Witness]) -> list[str]:
    """Every way in which the books differ from what was witnessed; empty when the law holds.

    Every opened request has exactly one row; every closed one is `completed` with its own figures; a row that nobody witnessed
    is at most the one request that each killed writer had journalled and not yet spoken of; the rollups are the rows' sums, and
    the wallets' debits and running balances are what the rows settled.
    """
    found: list[str] = []
    rows: dict[str, tuple[str, int]] = {}
    for request_id, status, output in database.rows("SELECT id, status, total_output FROM usage"):
        name = str(request_id if isinstance(request_id, UUID) else UUID(bytes=request_id))
        if name in rows:
            found.append(f"{name} has two rows")
        rows[name] = (status, output)
    opened = {request_id for witness in witnesses for request_id in witness.opened}
    closed = {request_id: tokens for witness in witnesses for request_id, tokens in witness.closed.items()}
    for request_id in opened - rows.keys():
        found.append(f"{request_id} was opened and has no row")
    for request_id, tokens in closed.items():
        if rows.get(request_id) != ("completed", tokens):
            found.append(f"{request_id} was answered with {tokens} tokens; its row is {rows.get(request_id)}")
    unspoken = rows.keys() - opened
    if len(unspoken) > len(witnesses):
        found.append(f"{len(unspoken)} rows that nobody opened, from {len(witnesses)} writers")
    silent = sum(1 for name, (status, _) in rows.items() if status == "completed" and name not in closed)
    if silent > len(witnesses):
        found.append(f"{silent} completed rows that nobody answered, from {len(witnesses)} writers")
    sums = database.rows("SELECT count(*), coalesce(sum(total_output), 0) FROM usage")
    rolled = database.rows("SELECT coalesce(sum(requests), 0), coalesce(sum(output), 0) FROM rollup_traffic")
    if sums != [tuple(map(int, each)) for each in rolled]:
        found.append(f"the rows add up to {sums}, the rollups to {rolled}")
    settled = _total(database, "SELECT -coalesce(sum(settled_nano), 0) FROM usage")
    for derived in (
        "amount_nano) FROM wallet_entries",
        "balance_nano) FROM wallets",
        "-settled_nano) FROM rollup_traffic",
    ):
        total = _total(database, f"SELECT sum({derived}")
        if total != settled:
            found.append(f"the rows settled {-settled} nano, but sum({derived} is {total}")
    attempts = database.rows("SELECT count(*), count(DISTINCT usage_id) FROM attempts")
    if attempts != [(len(rows), len(rows))]:
        found.append(f"{len(rows)} rows have {attempts} attempts")
    if database.count("metering_dead_letters"):
        found.append("something was set aside")
    return found


def _total(database: BooksDatabase, query: str) -> int:
    ((total,),) = database.rows(query)
    return int(total or 0)
