"""The database before requests: at this version's schema, and with the shipped price book in it."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from billing.database import open_database
from billing.seed import seed
from gateway import database
from gateway.database import SchemaState
from gateway.serve.errors import StartError
from gateway.settings import redact_url


async def bring_up_to_date(url: str) -> SchemaState:
    """Migrates, then enters the shipped price book and rates if there are none. Raises `StartError` when it does not answer, or
    this release does not fit it."""
    try:
        state = await database.upgrade(url)
        if not state.usable:
            raise StartError(state.advice)
        engine = open_database(url)
        try:
            async with engine.begin() as connection:
                await seed(connection)
        finally:
            await engine.dispose()
    except (OSError, SQLAlchemyError) as error:
        raise _no_answer(url, error) from error
    return state


async def look(url: str) -> SchemaState:
    """Which schema there is and which is needed. Raises `StartError` when the database does not answer."""
    try:
        return await database.check(url)
    except (OSError, SQLAlchemyError) as error:
        raise _no_answer(url, error) from error


def _no_answer(url: str, error: BaseException) -> StartError:
    """With the driver's own words on one line, without SQL."""
    cause = getattr(error, "orig", None) or error
    words = " ".join(str(cause).split()) or type(cause).__name__
    return StartError(f"the database {redact_url(url)} cannot be used ({words}); start it, or correct database_url")
