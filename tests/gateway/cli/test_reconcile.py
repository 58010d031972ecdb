"""`metergate reconcile`: exit 0 where the figures agree, 1 and a table where they don't, one line for a mistake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from billing.database import open_database
from billing.ledger import record
from billing.times import now_us
from billing.usage import Usage
from gateway.cli.errors import CliError
from gateway.cli.reconcile import reconcile
from tests.billing.helpers import rated_record, request_id

Run = Callable[..., Result]


def in_books(url: str, sql: str | None = None) -> None:
    """One request of today in the books, or one statement over them."""

    async def work() -> None:
        engine = open_database(url)
        async with engine.begin() as connection:
            if sql is not None:
                await connection.execute(text(sql))
            else:
                one = rated_record(Usage(input=60, cache_read=40, output=7), id_=request_id(now_us()))
                await record(connection, [one])
        await engine.dispose()

    asyncio.run(work())


@pytest.fixture
def run(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("METERGATE_HOME", str(tmp_path))
    config = tmp_path / "metergate.json"
    providers = {"deepseek": {"kind": "openai", "base_url": "https://api.example.com/v1"}}
    config.write_text(json.dumps({"database_url": sqlite_url, "providers": providers}))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(reconcile, [*arguments, "--config", str(config)])

    return run


def test_books_are_compared_and_repaired(run: Run, sqlite_url: str) -> None:
    in_books(sqlite_url)
    whole = run("books")
    assert (whole.exit_code, whole.stdout) == (0, "none\n")
    assert "rollups and wallets equal their rows over" in whole.stderr
    in_books(sqlite_url, "UPDATE rollup_traffic SET output = 0")
    said = run("books", "--json")
    assert said.exit_code == 1
    assert [(each["what"], each["where"]) for each in json.loads(said.stdout)] == [("rollup_traffic", "output")]
    repaired = run("books", "--repair")
    assert repaired.exit_code == 0 and "repaired 1; 0 left" in repaired.stderr
    assert run("books").exit_code == 0


def test_an_export_is_compared(run: Run, sqlite_url: str, tmp_path: Path) -> None:
    in_books(sqlite_url)
    export = tmp_path / "export.csv"
    # The helper's attempts begin with their request.
    head = "start_time,model,num_model_requests,input_tokens,input_cached_tokens,output_tokens\n"
    export.write_text(f"{head}{now_us() // 1_000_000},deepseek-chat,1,100,40,7\n")
    said = run("provider", str(export), "--provider", "deepseek", "--json")
    assert (said.exit_code, [each["verdict"] for each in json.loads(said.stdout)]) == (0, ["matched"])
    export.write_text(export.read_text().replace(",7\n", ",8\n"))
    said = run("provider", str(export), "--provider", "deepseek", "--json")
    assert (said.exit_code, [each["verdict"] for each in json.loads(said.stdout)]) == (1, ["differing"])


def test_mistakes_are_named(run: Run, tmp_path: Path) -> None:
    export = tmp_path / "export.json"
    export.write_text("{}")
    unknown = run("provider", str(export), "--provider", "nobody").exception
    assert isinstance(unknown, CliError) and "configured: deepseek" in str(unknown)
    unreadable = run("provider", str(export), "--provider", "deepseek").exception
    assert isinstance(unreadable, CliError) and "no `data` list" in str(unreadable)
