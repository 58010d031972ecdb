"""Column types that mean the same on SQLite (STRICT tables) and PostgreSQL. There is no float and no NUMERIC among them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, Boolean, Dialect, Integer, LargeBinary, types
from sqlalchemy.dialects import postgresql, sqlite

Int64 = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
"""A count or an amount: 64 bits, an error beyond."""


class RequestIdType(types.TypeDecorator[UUID]):
    """A UUIDv7: 16 bytes on SQLite, UUID on PostgreSQL; both sort by time."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.UUID(as_uuid=True))
        return dialect.type_descriptor(sqlite.BLOB())

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> UUID | bytes | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.bytes

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        if value is None or isinstance(value, UUID):
            return value
        return UUID(bytes=bytes(value))


class Flag(types.TypeDecorator[bool]):
    """True or false: BOOLEAN on PostgreSQL, 0 or 1 in a STRICT table."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(Boolean())
        return dialect.type_descriptor(Integer())

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> bool | int | None:
        if value is None or dialect.name == "postgresql":
            return value
        return int(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)
