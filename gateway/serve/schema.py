"""The database before requests: at this version's schema, and with the shipped price book in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from billing.database import BUSY_TIMEOUT_MS, open_database
from billing.seed import seed
from gateway import database
from gateway.database import SchemaState
from gateway.serve.errors import DatabaseAway, StartError
from gateway.settings import redact_url

_AWAY: Final = frozenset({"08", "53", "57"})
"""Classes of PostgreSQL's states: connection, resources, operator's intervention (it starts or stops)."""


async def bring_up_to_date(url: str, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> SchemaState:
    """Migrates, then enters the shipped price book and rates if there are none. Raises `DatabaseAway`, or another `StartError`
    where it cannot be used or this release does not fit it."""
    with telling(url):
        state = await database.upgrade(url, busy_timeout_ms=busy_timeout_ms)
        if not state.usable:
            raise StartError(state.advice)
        engine = open_database(url, busy_timeout_ms=busy_timeout_ms)
        try:
            async with engine.begin() as connection:
                await seed(connection)
        finally:
            await engine.dispose()
    return state


async def look(url: str) -> SchemaState:
    """Which schema there is and which is needed. Raises `DatabaseAway`, or another `StartError` where it cannot be used."""
    with telling(url):
        return await database.check(url)


@contextmanager
def telling(url: str) -> Iterator[None]:
    """Says what the database raises as a `StartError`, with the driver's own words on one line, without SQL."""
    try:
        yield
    except (OSError, SQLAlchemyError) as error:
        cause = getattr(error, "orig", None) or error
        words = " ".join(str(cause).split()) or type(cause).__name__
        found = f"the database {redact_url(url)} cannot be used ({words})"
        if url.startswith("sqlite"):
            if _is_locked(error):
                raise DatabaseAway(f"{found}; end what holds it") from error
            raise StartError(f"{found}; correct database_url") from error
        kind = DatabaseAway if _is_away(error) else StartError
        raise kind(f"{found}; start it, or correct database_url") from error


def _is_locked(error: Exception) -> bool:
    """Whether another connection to this file of SQLite holds what is needed."""
    return isinstance(error, DBAPIError) and "is locked" in str(error.orig)


def _is_away(error: Exception) -> bool:
    """Whether PostgreSQL cannot be reached, or takes nobody now."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, OSError)
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or (state is not None and state[:2] in _AWAY)
