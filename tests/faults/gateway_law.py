"""What must hold once a disturbed gateway has come to rest: the provider's book and the callers' word against our books."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from billing.drift import find_drift
from billing.money import Money
from tests.faults.callers import Heard
from tests.faults.stage import Stage
from tests.gateway.metering.books import BooksDatabase

FAR_US = 4_000_000_000_000_000
UUID_CHARACTERS = 36
"""A provider sees the request's id, from the second attempt on with the attempt's number behind it."""


@dataclass(frozen=True, slots=True)
class Row:
    status: str
    estimated: bool
    total_input: int
    total_output: int
    settled_nano: int | None


def violations(stage: Stage) -> list[str]:
    """Every way in which rows, attempts, rollups and what the provider and the callers saw differ; empty when the law holds.

    Every request that the provider was asked for has exactly one row, and at least as many attempts as it was asked; a complete
    answer stands there as `completed` with the provider's own figures; what is not estimated adds up to the provider's book.
    """
    book = [{**entry, "request_id": entry["request_id"][:UUID_CHARACTERS]} for entry in stage.provider.book()]
    rows = {name: row for name, row in rows_of(stage.database).items() if name not in stage.proven}
    found = _against_the_provider(stage, book, rows)
    for heard in stage.callers.heard:
        if heard.complete:
            found += _answered(heard, rows.get(heard.request_id))
    return found + sums(stage.database)


def rows_of(database: BooksDatabase) -> dict[str, Row]:
    """By request id; reversals and corrections are not among them."""
    rows: dict[str, Row] = {}
    sql = "SELECT id, status, estimated, total_input, total_output, settled_nano FROM usage WHERE kind = 'usage'"
    for identity, status, estimated, total_input, total_output, settled in database.rows(sql):
        rows[_name(identity)] = Row(status, bool(estimated), total_input, total_output, settled)
    return rows


def forget(stage: Stage) -> None:
    """The law holds for everything so far: later runs need not read the old books again."""
    stage.proven |= rows_of(stage.database).keys()
    stage.callers.heard.clear()
    stage.provider.clear()


def _name(identity: object) -> str:
    return str(identity if isinstance(identity, UUID) else UUID(bytes=bytes(identity)))  # type: ignore[call-overload]


def _against_the_provider(stage: Stage, book: list[dict[str, object]], rows: dict[str, Row]) -> list[str]:
    found: list[str] = []
    asked = Counter(str(entry["request_id"]) for entry in book)
    attempts = Counter(_name(identity) for (identity,) in stage.database.rows("SELECT usage_id FROM attempts"))
    for request_id, times in asked.items():
        if request_id not in rows:
            found.append(f"{request_id} was served by the provider and has no row")
        elif attempts[request_id] < times:
            found.append(f"{request_id} was asked {times} times and has {attempts[request_id]} attempts")
    for request_id, row in rows.items():
        if request_id not in asked and row.status == "completed":
            found.append(f"{request_id} is completed and the provider never heard of it")
    for entry in book:
        known = rows.get(str(entry["request_id"]))
        if known is None or known.status != "completed" or known.estimated:
            continue
        body = entry["body"]
        assert isinstance(body, dict)
        script = dict(item.split("=") for item in body["user"].split(";"))
        if (known.total_input, known.total_output) != (int(script["prompt"]), int(script["output"])):
            found.append(f"{entry['request_id']} used {script}; its row is {known}")
    return found


def _answered(heard: Heard, row: Row | None) -> list[str]:
    wish = heard.wish
    if row is None:
        return [f"{heard.request_id} was answered and has no row"]
    right = (row.status, row.estimated, row.total_input, row.total_output)
    if right != ("completed", False, wish.prompt, wish.output):
        return [f"{heard.request_id} was answered with {wish.prompt} and {wish.output} tokens; its row is {row}"]
    exact = wish.prompt * 280 + wish.output * 420
    if row.settled_nano != exact:
        return [f"{heard.request_id} settles at {row.settled_nano} nano instead of {exact}"]
    return []


def sums(database: BooksDatabase) -> list[str]:
    """Rows, lines and rollups add up to the same, and nothing was set aside."""
    found: list[str] = []
    rolled = database.rows(
        "SELECT coalesce(sum(requests), 0), coalesce(sum(output), 0), coalesce(sum(settled_nano), 0) FROM rollup_traffic"
    )
    signed = database.rows(
        "SELECT coalesce(sum(CASE kind WHEN 'reversal' THEN -1 ELSE 1 END), 0), coalesce(sum(total_output), 0), "
        "coalesce(sum(settled_nano), 0) FROM usage"
    )
    if [tuple(map(int, each)) for each in rolled] != [tuple(map(int, each)) for each in signed]:
        found.append(f"the rows add up to {signed}, the rollups to {rolled}")
    lines = database.rows("SELECT coalesce(sum(settled_nano), 0) FROM usage_lines")
    money = database.rows("SELECT coalesce(sum(settled_nano), 0) FROM rollup_money")
    if int(lines[0][0]) != int(money[0][0]) or int(lines[0][0]) != int(signed[0][2]):
        found.append(f"the rows settle at {signed[0][2]}, their lines at {lines[0][0]}, the rollup at {money[0][0]}")
    if database.count("metering_dead_letters"):
        found.append("something was set aside")
    return found


def unsettled(stage: Stage) -> list[str]:
    """What the limit store and everything derived say against the rows, once no lease can be open any more."""
    found = [str(drift) for drift in stage.database.run(lambda connection: find_drift(connection, 0, FAR_US))]
    budget = stage.budget()
    if budget is None:
        return [*found, "the budget cannot be asked for"]
    total = int(stage.database.rows("SELECT coalesce(sum(settled_nano), 0) FROM usage")[0][0])
    if Money.parse(budget["spent"], "CNY").nano != total:
        found.append(f"the budget says {budget['spent']} spent, the rows {total} nano")
    if Money.parse(budget["reserved"], "CNY").nano != 0:
        found.append(f"{budget['reserved']} is still reserved, and nothing runs")
    return found
