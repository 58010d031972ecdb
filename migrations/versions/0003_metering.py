"""Metering: dead letters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql, sqlite

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
_REQUEST_ID = sa.LargeBinary().with_variant(postgresql.UUID(as_uuid=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "metering_dead_letters",
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("request_id", _REQUEST_ID),
        sa.Column("journal", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
        sa.Column("set_aside_at_us", _INT64, nullable=False),
        sa.Column("resolved_at_us", _INT64),
        sa.PrimaryKeyConstraint("digest", name="pk_metering_dead_letters"),
        sqlite_strict=True,
    )
    op.create_index("ix_metering_dead_letters_request_id", "metering_dead_letters", ["request_id"])
