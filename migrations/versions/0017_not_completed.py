"""Requests that did not end well are few among many: an index finds them at once, where a list of them read the whole range."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_WHERE = "status <> 'completed'"


def ahead(connection: sa.Connection) -> None:
    """PostgreSQL: builds the partitions' indexes while writers go on, anew where that was cut short. `upgrade` adopts them."""
    partitions = connection.execute(
        sa.text(
            "SELECT relname, indisvalid FROM pg_partition_tree('usage') JOIN pg_class ON pg_class.oid = relid "
            "LEFT JOIN pg_index ON indexrelid = to_regclass('ix_' || relname || '_not_completed') WHERE isleaf"
        )
    )
    for name, valid in partitions.all():
        index = f"ix_{name}_not_completed"
        if valid is False:
            connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY {index}")
        if not valid:
            connection.exec_driver_sql(f"CREATE INDEX CONCURRENTLY {index} ON {name} (status, id) WHERE {_WHERE}")


def upgrade() -> None:
    where = sa.text(_WHERE)
    op.create_index("ix_usage_not_completed", "usage", ["status", "id"], sqlite_where=where, postgresql_where=where)
