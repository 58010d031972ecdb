"""The schema's history: one Alembic chain for SQLite and PostgreSQL. Run by `gateway.database.upgrade`."""
