"""Events that are told once, and at which percentages a budget is told of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Int64

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("budgets", sa.Column("thresholds", sa.Text))
    op.create_table(
        "webhook_events",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("keep_until_us", Int64),
        sa.Column("next_at_us", Int64),
        sa.Column("attempts", Int64, nullable=False),
        sa.Column("delivered_at_us", Int64),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_webhook_events")),
        sqlite_strict=True,
    )
    op.create_index("ix_webhook_events_keep", "webhook_events", ["keep_until_us"])
    op.create_index("ix_webhook_events_next", "webhook_events", ["next_at_us"])
