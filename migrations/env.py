"""Runs a migration over the connection that `gateway.database` opened and locked; there is no other way in."""

from __future__ import annotations

from alembic import context

from billing.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=False, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
