"""List amounts without a reference rate become a sum of their own: an index over sums that change at every row kept PostgreSQL
from updating cells in place. What is folded is folded again, with it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Int64

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_rollup_traffic_unreferenced", "rollup_traffic")
    op.execute("DELETE FROM rollup_routes")
    op.execute("DELETE FROM rollup_keys")
    op.execute("UPDATE rollup_mark SET until_us = 0")
    for name in ("rollup_traffic", "rollup_routes", "rollup_keys"):
        op.add_column(name, sa.Column("unreferenced_nano", Int64, server_default=sa.text("0"), nullable=False))
    op.execute(
        "UPDATE rollup_traffic SET unreferenced_nano = list_nano "
        "WHERE reference_nano = 0 AND list_nano <> 0 AND list_currency <> settlement_currency"
    )
    unreferenced = sa.text("unreferenced_nano <> 0")
    op.create_index(
        "ix_rollup_routes_unreferenced",
        "rollup_routes",
        ["bucket_us"],
        sqlite_where=unreferenced,
        postgresql_where=unreferenced,
    )
