"""What an error of a write means: try again as it is, or find the row that is to blame.

A row is to blame for what it holds: a value beyond 64 bits, a text that the database refuses, a constraint of its own. An error
that says nothing about values (one of our own, a trigger, a month without a partition) may blame one row or all of them.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from billing.errors import BillingError


class Verdict(Enum):
    """`CONTENT` blames what a row holds, `DOUBT` a row or whatever all rows have in common; the others ask for another try (the
    value is the metric's label)."""

    CONTENT = "content"
    DOUBT = "rows"
    CONFLICT = "conflict"
    CONNECTION = "connection"
    TIMEOUT = "timeout"


_CONFLICTS = frozenset({"40001", "40P01", "55P03"})
_CONTENT_CLASSES = frozenset({"21", "22", "23", "44", "54"})


def judge(error: Exception) -> Verdict:
    """Unknown database errors count as an outage (the rows are innocent until shown guilty), unknown others as doubt."""
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return Verdict.TIMEOUT
    if isinstance(error, DBAPIError):
        return _judge_database(error)
    if isinstance(error, (OSError, SQLAlchemyError)):
        return Verdict.CONNECTION
    if isinstance(error, (BillingError, ValueError, ArithmeticError)):
        return Verdict.CONTENT
    # A driver whose connection was cut under it raises errors of its own that SQLAlchemy does not wrap.
    return (
        Verdict.CONNECTION if type(error).__module__.startswith(("asyncpg", "aiosqlite", "sqlite3")) else Verdict.DOUBT
    )


def _judge_database(error: DBAPIError) -> Verdict:
    state = getattr(error.orig, "sqlstate", None)
    if isinstance(state, str):
        if state in _CONFLICTS:
            return Verdict.CONFLICT
        if state[:2] not in _CONTENT_CLASSES:
            return Verdict.CONNECTION
        return Verdict.DOUBT if "no partition of relation" in str(error.orig) else Verdict.CONTENT
    if error.connection_invalidated:
        return Verdict.CONNECTION
    if _of_a_trigger(error.orig):
        return Verdict.DOUBT
    if isinstance(error, (IntegrityError, DataError)) or isinstance(getattr(error.orig, "__cause__", None), ValueError):
        return Verdict.CONTENT
    text = str(error.orig)
    if "database is locked" in text or "database table is locked" in text:
        return Verdict.CONFLICT
    return Verdict.CONNECTION


def _of_a_trigger(error: BaseException | None) -> bool:
    """SQLite's own name of the error; the driver's error may stand behind SQLAlchemy's."""
    while error is not None:
        if getattr(error, "sqlite_errorname", None) == "SQLITE_CONSTRAINT_TRIGGER":
            return True
        error = error.__cause__
    return False
