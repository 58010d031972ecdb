"""The schema says which releases run on it, so that an old one goes on, and comes back, while a newer one is rolled out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Int64

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schema_floor",
        sa.Column(
            "id",
            Int64,
            sa.CheckConstraint("id = 1", name=op.f("ck_schema_floor_one_row")),
            nullable=False,
            autoincrement=False,
        ),
        sa.Column("revision", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schema_floor")),
        sqlite_strict=True,
    )
    op.execute("INSERT INTO schema_floor (id, revision) VALUES (1, '0016')")
