"""The books under load: a month's statement, dashboards and admin writes over a database that is bulk-loaded first.

    python -m bench.billing                      # 1 million rows on SQLite, 2 million on PostgreSQL
    python -m bench.billing --full               # 10 million on PostgreSQL
    python -m bench.billing --only sqlite --rows 200000

Rows are those of October 2026: 10 teams, 1,000 keys of unequal weight, five models, two lines and one attempt a request, with
the rollups that the recorder would have written. Loading is not measured. Recording is measured by `bench.metering` as a ratio to
a plain bulk load of the same bytes, and here once more while admin writes wait for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine

from bench.billing_load import TEAMS, Plan, load_postgresql, load_sqlite
from bench.metering import Database, databases, journalled, rate_all
from bench.metering import publish as publish_books
from billing.books import load_books
from billing.database import open_database, reading
from billing.folding import fold
from billing.ledger import record, spent
from billing.partitions import ensure_partitions
from billing.periods import zone_of
from billing.publishing import publish_price
from billing.reads import UsageFilters
from billing.reports import usage_buckets
from billing.statements import draft_statement, issue_statement, month_bounds
from billing.teams import TeamRow, create_team
from billing.times import DAY_US, datetime_of, now_us
from gateway.database import upgrade
from gateway.ids import new_request_id
from gateway.metering.pace import Pace, begin_last

ROOT: Final = Path(__file__).parents[1]
MONTH: Final = "2026-10"


async def load(database: Database, plan: Plan) -> None:
    if database.server is None:
        load_sqlite(make_url(database.url).database or "", plan)
    else:
        await load_postgresql(database.url, plan)


async def timed(database: Database, work: Callable[[], Awaitable[Any]], times: int) -> dict[str, float]:
    """The least and the median of some runs in milliseconds, after one that warms the cache; and the CPU of a run, ours and the
    database's, which says what a machine that does nothing else would take."""
    await work()
    taken = []
    cpu_s = time.process_time() + database.server_cpu_s()
    for _ in range(times):
        start = time.perf_counter()
        await work()
        taken.append((time.perf_counter() - start) * 1000)
    cpu_s = time.process_time() + database.server_cpu_s() - cpu_s
    return {
        "least_ms": round(min(taken), 1),
        "median_ms": round(statistics.median(taken), 1),
        "cpu_ms": round(cpu_s / times * 1000, 1),
    }


async def measure(database: Database, plan: Plan, times: int) -> dict[str, Any]:
    engine = open_database(database.url)
    team = plan.teams[0]
    answer: dict[str, Any] = {"rows": plan.rows}
    try:
        answer["fold"] = await fold_all(engine)
        async with engine.connect() as connection:
            for name in ("rollup_money", "rollup_traffic", "rollup_routes", "rollup_keys"):
                answer[name] = int(await connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0)

        async def draft() -> Any:
            async with engine.begin() as connection:
                return await draft_statement(connection, team, MONTH)

        answer["statement_draft"] = await timed(database, draft, times)
        row = await draft()
        start = time.perf_counter()
        async with engine.begin() as connection:
            issued = await issue_statement(connection, team, row.id)
        answer["statement_issue_ms"] = round((time.perf_counter() - start) * 1000, 1)
        answer["statement_payable"] = issued.document.totals.payable.amount
        answer["dashboards"] = {
            name: await timed(database, work, times) for name, work in dashboards(engine, plan).items()
        }
    finally:
        await engine.dispose()
    return answer


def dashboards(engine: AsyncEngine, plan: Plan) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What a dashboard asks: a day by hours, a month by days, for everything, a team and a key, in several time zones; and
    what admission asks of every budget."""
    day = (plan.end_us - DAY_US, plan.end_us)
    month = (plan.start_us, plan.end_us)
    team, key = plan.teams[0], f"key_{0:016d}"

    def ask(
        span: tuple[int, int], interval: str, group: Sequence[str] = (), zone: str = "UTC", **only: str
    ) -> Callable[[], Awaitable[Any]]:
        shifted = tuple(at_us - offset_us(zone, at_us) for at_us in span)

        async def work() -> Any:
            async with reading(engine) as connection:
                return await usage_buckets(
                    connection, *shifted, interval, zone, group_by=group, filters=UsageFilters(**only), limit=1000
                )

        return work

    def ask_spent(scope: str, scope_id: str | None, currency: str) -> Callable[[], Awaitable[Any]]:
        async def work() -> Any:
            async with reading(engine) as connection:
                return await spent(connection, scope, scope_id, currency, *month)

        return work

    return {
        "day_by_hour": ask(day, "hour"),
        "day_by_hour_and_model": ask(day, "hour", ("model",)),
        "day_by_key": ask(day, "day", ("key",)),
        "day_of_team_by_key": ask(day, "day", ("key",), team_id=team),
        "month_by_day": ask(month, "day"),
        "month_by_day_shanghai": ask(month, "day", zone="Asia/Shanghai"),
        "month_by_day_new_york": ask(month, "day", zone="America/New_York"),
        "month_by_day_kathmandu": ask(month, "day", zone="Asia/Kathmandu"),
        "month_by_day_and_model": ask(month, "day", ("model",)),
        "month_by_team": ask(month, "month", ("team",)),
        "month_by_team_and_model": ask(month, "month", ("team", "model")),
        "month_by_key": ask(month, "month", ("key",)),
        "month_by_key_shanghai": ask(month, "month", ("key",), "Asia/Shanghai"),
        "month_by_key_new_york": ask(month, "month", ("key",), "America/New_York"),
        "month_by_key_kathmandu": ask(month, "month", ("key",), "Asia/Kathmandu"),
        "month_of_team_by_day": ask(month, "day", team_id=team),
        "month_of_team_by_key": ask(month, "month", ("key",), team_id=team),
        "month_of_key_by_day": ask(month, "day", key_id=key),
        "month_of_key_by_day_kathmandu": ask(month, "day", zone="Asia/Kathmandu", key_id=key),
        "month_of_key_by_model": ask(month, "month", ("model",), key_id=key),
        "spent_by_team": ask_spent("team", team, "CNY"),
        "spent_by_key": ask_spent("key", key, "CNY"),
        "spent_by_all_listed": ask_spent("all", None, "USD"),
        "spent_by_all_settled": ask_spent("all", None, "CNY"),
    }


def offset_us(zone: str, at_us: int) -> int:
    """How far that zone's clocks are ahead of UTC."""
    offset = datetime_of(at_us).astimezone(zone_of(zone)).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1)


async def fold_all(engine: AsyncEngine) -> dict[str, float]:
    """What is loaded, into the coarse rollups, as the gateway does it once a minute."""
    taken, more = [], True
    while more:
        start = time.perf_counter()
        async with engine.begin() as connection:
            more = await fold(connection, now_us())
        taken.append((time.perf_counter() - start) * 1000)
    return {"steps": len(taken), "median_ms": round(statistics.median(taken), 1), "most_ms": round(max(taken), 1)}


async def admin_writes(database: Database, journal: Path, writes: int) -> dict[str, Any]:
    """Admin writes one after the other while another process commits batch after batch as fast as it can."""
    engine = open_database(database.url)
    context = multiprocessing.get_context("spawn")
    stop, recorded = context.Event(), context.Value("q", 0)
    recorder = context.Process(target=keep_recording, args=(database.url, journal, stop, recorded))
    recorder.start()
    taken = []
    try:
        while recorded.value == 0 and recorder.is_alive():
            await asyncio.sleep(0.01)
        assert recorder.is_alive(), "the recorder's process has failed"
        before = recorded.value
        for at in range(writes):
            start = time.perf_counter()
            async with engine.begin() as connection:
                await publish_price(
                    connection,
                    price_list="bench",
                    model=f"model-{at}",
                    token_class="output",
                    currency="USD",
                    amount="1",
                    effective_from_us=now_us(),
                )
            taken.append((time.perf_counter() - start) * 1000)
            await asyncio.sleep(0.005)
        meanwhile = recorded.value - before
    finally:
        stop.set()
        await asyncio.to_thread(recorder.join)
        await engine.dispose()
    taken.sort()
    return {
        "writes": writes,
        "rows_recorded_meanwhile": meanwhile,
        "median_ms": round(statistics.median(taken), 1),
        "p99_ms": round(taken[min(len(taken) - 1, int(len(taken) * 0.99))], 1),
    }


def keep_recording(url: str, journal: Path, stop: Event, recorded: Synchronized[int]) -> None:
    """The same requests under new ids, as many a transaction as the recorder would commit."""
    asyncio.run(_record_until(url, journal, stop, recorded))


async def _record_until(url: str, journal: Path, stop: Event, recorded: Synchronized[int]) -> None:
    engine, pace = open_database(url, pool_size=1), Pace()
    async with engine.connect() as connection:
        books = await load_books(connection)
    rated = rate_all(books, journal)
    try:
        while not stop.is_set():
            part = [replace(each, id=new_request_id()) for each in rated[: pace.rows]]
            start = time.perf_counter()
            async with begin_last(engine) as connection:
                recorded.value += (await record(connection, part)).inserted
            pace.took(len(part), time.perf_counter() - start)
    finally:
        await engine.dispose()


async def prepare(database: Database) -> tuple[TeamRow, ...]:
    engine = open_database(database.url)
    try:
        async with engine.begin() as connection:
            teams = [await create_team(connection, name=f"team {at}", settlement_currency="CNY") for at in range(TEAMS)]
            await ensure_partitions(connection, month_bounds(MONTH, "UTC")[0], months_ahead=0)
        return tuple(teams)
    finally:
        await engine.dispose()


async def main(arguments: argparse.Namespace) -> None:
    results = []
    with tempfile.TemporaryDirectory(prefix="metergate-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for database in databases(folder, arguments.only):
            rows = arguments.rows or (1_000_000 if database.server is None else 2_000_000)
            if arguments.full and database.server is not None:
                rows = 10_000_000
            await upgrade(database.url)
            team, pins = await publish_books(database.url)
            teams = await prepare(database)
            plan = Plan(tuple(each.id for each in teams), *month_bounds(MONTH, "UTC"), rows)
            start = time.perf_counter()
            await load(database, plan)
            print(f"{database.kind}: {rows:,} rows loaded in {time.perf_counter() - start:.0f} s", flush=True)
            found = {"database": database.kind, **await measure(database, plan, arguments.times)}
            journal = journalled(folder / f"journal-{database.kind}", team, pins, 1000)
            found["admin_writes"] = await admin_writes(database, journal, arguments.writes)
            results.append(found)
            print(json.dumps(found, indent=1), flush=True)
    out = ROOT / "bench" / "results" / f"billing-{arguments.only or 'both'}.json"
    out.parent.mkdir(exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average": [round(each, 1) for each in os.getloadavg()],
        "sqlite": sqlite3.sqlite_version,
    }
    out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="so many rows instead")
    parser.add_argument("--full", action="store_true", help="10 million rows on PostgreSQL")
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--writes", type=int, default=200)
    asyncio.run(main(parser.parse_args()))
