"""Rule 26: a database that is away at the start, or held by somebody else, makes a gateway that waits and says so."""

from __future__ import annotations

import asyncio
import logging
import socket
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from gateway import database
from gateway.serve.answering import prepare_database
from gateway.serve.errors import DatabaseAway, StartError
from gateway.serve.schema import look
from gateway.serve.waiting import once_there
from gateway.settings import load_settings

DEADLINE_S = 30.0
SOON_S = 0.05


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def client(listener: socket.socket) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=DEADLINE_S, trust_env=False
    )


async def reasons(gateway: httpx.AsyncClient, word: str) -> list[str]:
    """Why it is not ready, once that has the word in it."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            answer = await gateway.get("/health/ready")
            assert answer.status_code == 503
            found: dict[str, Any] = answer.json()
            if word in str(found):
                assert found["status"] == "not ready"
                return list(found["reasons"])


@pytest.mark.parametrize("kind", ["empty_sqlite_url", "sqlite_url"])
@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
async def test_rule_26_a_locked_sqlite_is_waited_for_by_a_gateway_that_lives_and_is_not_ready(
    kind: str, lock: str, listener: socket.socket, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.serve.waiting")
    url: str = request.getfixturevalue(kind)
    settings = load_settings(None, {"METERGATE_DATABASE_URL": url})
    holder = sqlite3.connect(make_url(url).database or "", isolation_level=None)
    try:
        holder.execute(f"BEGIN {lock}")
        start = asyncio.create_task(once_there([listener], partial(prepare_database, settings, 20), SOON_S))
        async with client(listener) as gateway:
            [reason] = await reasons(gateway, "is locked")
            assert url in reason and "end what holds it" in reason
            assert (await gateway.get("/health/live")).json() == {"status": "ok"}
            refused = await gateway.post("/v1/chat/completions", json={}, headers={"authorization": "Bearer sk-mg-x"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
            assert not start.done()
        holder.execute("COMMIT")
    finally:
        holder.close()
    await asyncio.wait_for(start, DEADLINE_S)
    assert (await database.check(url)).up_to_date
    said = [record.getMessage() for record in caplog.records if record.name == "gateway.serve.waiting"]
    assert said == [f"not ready: {reason}", "the database is there"]
    with socket.create_connection(listener.getsockname()):
        listener.accept()[0].close()


async def test_rule_26_a_start_that_waits_can_be_ended(listener: socket.socket) -> None:
    settings = load_settings(None, {"METERGATE_DATABASE_URL": "postgresql://someone:s3cret@127.0.0.1:1/books"})
    start = asyncio.create_task(once_there([listener], partial(prepare_database, settings), SOON_S))
    async with client(listener) as gateway:
        [reason] = await reasons(gateway, "cannot be used")
    assert "127.0.0.1:1/books" in reason and "s3cret" not in reason
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(start, DEADLINE_S)


async def test_what_no_waiting_mends_ends_the_start(
    postgresql_url: str, tmp_path: Path, listener: socket.socket
) -> None:
    elsewhere = make_url(postgresql_url).set(database="nowhere").render_as_string(hide_password=False)
    (tmp_path / "text.db").write_text("this is no database of SQLite, however long one looks at it" * 99)
    for url, said in ((elsewhere, "does not exist"), (f"sqlite:///{tmp_path}/text.db", "is not a database")):
        settings = load_settings(None, {"METERGATE_DATABASE_URL": url})
        with pytest.raises(StartError, match=said) as found:
            await asyncio.wait_for(once_there([listener], partial(prepare_database, settings)), DEADLINE_S)
        assert not isinstance(found.value, DatabaseAway)


async def test_a_server_that_cannot_be_reached_is_away() -> None:
    for host in ("127.0.0.1:1", "name.invalid"):
        with pytest.raises(DatabaseAway, match=host):
            await look(f"postgresql://someone@{host}/books")
