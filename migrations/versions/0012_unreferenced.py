"""List amounts without a reference rate are converted one by one for budgets over everything: an index finds them at once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    unreferenced = sa.text("reference_nano = 0 AND list_nano <> 0")
    op.create_index(
        "ix_rollup_traffic_unreferenced",
        "rollup_traffic",
        ["bucket_us"],
        sqlite_where=unreferenced,
        postgresql_where=unreferenced,
    )
