"""The dead-letter table: what could not become a row, kept whole until a person has seen to the cause."""

from __future__ import annotations

from sqlalchemy import Column, LargeBinary, Table, Text

from billing.columns import Int64, RequestIdType
from billing.tables import metadata

dead_letters = Table(
    "metering_dead_letters",
    metadata,
    # The digest of the payload: the same letter set aside twice is one letter.
    Column("digest", Text, primary_key=True),
    Column("request_id", RequestIdType, nullable=True, index=True),
    Column("journal", Text, nullable=False),
    Column("reason", Text, nullable=False),
    # A msgpack array of the journal's payloads: the opened records, then the outcome if there is one.
    Column("payload", LargeBinary, nullable=False),
    Column("set_aside_at_us", Int64, nullable=False),
    # When a replay has turned it into a row after all.
    Column("resolved_at_us", Int64, nullable=True),
    sqlite_strict=True,
)
