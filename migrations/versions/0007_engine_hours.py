"""What an hour of the engine cost that served an attempt, frozen beside the cost that was computed from it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Int64

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("hour_currency", sa.Text()))
    op.add_column("attempts", sa.Column("hour_nano", Int64))
