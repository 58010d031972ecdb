"""What an error of a write means: try again as it is, or find the row that is to blame."""

from __future__ import annotations

import asyncio
from enum import Enum

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from billing.errors import BillingError


class Verdict(Enum):
    """`CONTENT` blames a row; the others ask for another try (the value is the metric's label)."""

    CONTENT = "content"
    CONFLICT = "conflict"
    CONNECTION = "connection"
    TIMEOUT = "timeout"


_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_CONTENT_CLASSES = frozenset({"21", "22", "23", "44", "54"})


def judge(error: Exception) -> Verdict:
    """Unknown database errors count as an outage (the rows are innocent until shown guilty), unknown others as content."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return Verdict.TIMEOUT
    if isinstance(error, DBAPIError):
        return _judge_database(error)
    if isinstance(error, (OSError, SQLAlchemyError)):
        return Verdict.CONNECTION
    if isinstance(error, (BillingError, ValueError, TypeError, ArithmeticError)):
        return Verdict.CONTENT
    # A driver whose connection was cut under it raises errors of its own that SQLAlchemy does not wrap.
    return (
        Verdict.CONNECTION
        if type(error).__module__.startswith(("asyncpg", "aiosqlite", "sqlite3"))
        else Verdict.CONTENT
    )


def _judge_database(error: DBAPIError) -> Verdict:
    state = getattr(error.orig, "sqlstate", None)
    if isinstance(state, str):
        if state in _CONFLICTS:
            return Verdict.CONFLICT
        return Verdict.CONTENT if state[:2] in _CONTENT_CLASSES else Verdict.CONNECTION
    if error.connection_invalidated:
        return Verdict.CONNECTION
    if isinstance(error, (IntegrityError, DataError)) or isinstance(getattr(error.orig, "__cause__", None), ValueError):
        return Verdict.CONTENT
    text = str(error.orig)
    if "database is locked" in text or "database table is locked" in text:
        return Verdict.CONFLICT
    return Verdict.CONNECTION
