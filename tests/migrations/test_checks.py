"""The checks of a usage row hold in every process as soon as they are migrated, and in a database that was open before."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database
from billing.ledger import record
from billing.usage import Usage
from gateway.database import upgrade
from tests.billing.helpers import rated_record


async def test_rows_stay_and_the_new_checks_hold_in_a_connection_that_was_open(empty_sqlite_url: str) -> None:
    await upgrade(empty_sqlite_url, "0013")
    engine = open_database(empty_sqlite_url)
    try:
        async with engine.begin() as connection:
            await record(connection, [rated_record(Usage(output=5), status="failed")])
        await upgrade(empty_sqlite_url)
        async with engine.begin() as connection:
            assert await connection.scalar(text("SELECT status FROM usage")) == "failed"
            assert await connection.scalar(text("PRAGMA integrity_check")) == "ok"
        await _refuses(engine)
    finally:
        await engine.dispose()


async def test_what_a_usage_row_may_be_is_checked_by_the_database(database: AsyncEngine) -> None:
    await _refuses(database)


async def _refuses(engine: AsyncEngine) -> None:
    for status in ("paid", "", "completed' OR '1"):
        with pytest.raises(DBAPIError, match="ck_usage_status"):
            async with engine.begin() as connection:
                await record(connection, [rated_record(Usage(output=5), status=status)])
