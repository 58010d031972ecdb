"""The checks of a usage row hold in every process as soon as they are migrated, and in a database that was open before."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database
from billing.ledger import record
from billing.tables import usage
from billing.usage import Usage
from gateway.database import upgrade
from tests.billing.helpers import NOON_US, rated_record, request_id

_TEXTS = ("team_id", "key_id", "model", "surface", "settlement_currency", "rate_ids")
_COUNTS = ("total_input", "total_output", "reasoning", "compute_us", "latency_us", "recorded_at_us")
_PINS = ("pin_book", "pin_rates", "pin_terms")
ROW: dict[str, object] = dict.fromkeys(_TEXTS, "x") | dict.fromkeys((*_COUNTS, *_PINS), 0)
ROW |= {
    "id": request_id(NOON_US),
    "kind": "usage",
    "status": "failed",
    "tags": "{}",
    "estimated": False,
    "streamed": False,
}


async def test_rows_stay_and_the_new_checks_hold_in_a_connection_that_was_open(empty_sqlite_url: str) -> None:
    await upgrade(empty_sqlite_url, "0013")
    engine = open_database(empty_sqlite_url)
    try:
        async with engine.begin() as connection:
            await connection.execute(insert(usage).values(ROW))
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
