"""Requests whose amount left 64 bits exhaust the budgets over them: an index finds them, who are next to none, at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    overflow = sa.text("substr(unpriced, 1, 8) = 'overflow'")
    op.create_index(
        "ix_usage_overflow", "usage", ["team_id", "id"], sqlite_where=overflow, postgresql_where=overflow, unique=False
    )
