"""Statements with their cells, watermarks of journals, drafts of price books, a team's time zone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Int64

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("teams", sa.Column("timezone", sa.Text(), server_default="UTC", nullable=False))
    _statements()
    op.create_table(
        "journal_watermarks",
        sa.Column("journal", sa.Text(), nullable=False),
        sa.Column("watermark_us", Int64, nullable=False),
        sa.Column("complete_at_us", Int64),
        sa.Column("updated_at_us", Int64, nullable=False),
        sa.PrimaryKeyConstraint("journal", name=op.f("pk_journal_watermarks")),
        sqlite_strict=True,
    )
    op.create_table(
        "price_drafts",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("rows", sa.Text(), nullable=False),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("closed_at_us", Int64),
        sa.Column("version", Int64),
        sa.CheckConstraint("state IN ('draft', 'published', 'discarded')", name=op.f("ck_price_drafts_state")),
        sa.ForeignKeyConstraint(["version"], ["price_books.version"], name=op.f("fk_price_drafts_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_drafts")),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        _guard_postgresql()
    else:
        _guard_sqlite()


def _statements() -> None:
    op.create_table(
        "statements",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("start_us", Int64, nullable=False),
        sa.Column("end_us", Int64, nullable=False),
        sa.Column("number", Int64),
        sa.Column("corrects_id", Int64),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text()),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("issued_at_us", Int64),
        sa.CheckConstraint("kind IN ('statement', 'credit_note')", name=op.f("ck_statements_kind")),
        sa.CheckConstraint("state IN ('draft', 'issued')", name=op.f("ck_statements_state")),
        sa.CheckConstraint("(state = 'issued') = (number IS NOT NULL)", name=op.f("ck_statements_number")),
        sa.CheckConstraint("(kind = 'credit_note') = (corrects_id IS NOT NULL)", name=op.f("ck_statements_corrects")),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name=op.f("fk_statements_team_id")),
        sa.ForeignKeyConstraint(["corrects_id"], ["statements.id"], name=op.f("fk_statements_corrects_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_statements")),
        sa.UniqueConstraint("number", name=op.f("uq_statements_number")),
        sa.UniqueConstraint("corrects_id", name=op.f("uq_statements_corrects_id")),
        sqlite_strict=True,
    )
    op.create_index("ix_statements_team", "statements", ["team_id", "start_us"], unique=False)
    op.create_table(
        "statement_cells",
        sa.Column("statement_id", Int64, autoincrement=False, nullable=False),
        sa.Column("source_start_us", Int64, autoincrement=False, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("provider_model", sa.Text(), nullable=False),
        sa.Column("token_class", sa.Text(), nullable=False),
        sa.Column("price_row_id", Int64, autoincrement=False, nullable=False),
        sa.Column("terms_id", Int64, autoincrement=False, nullable=False),
        sa.Column("sell_id", Int64, autoincrement=False, nullable=False),
        sa.Column("rate_ids", sa.Text(), nullable=False),
        sa.Column("list_currency", sa.Text(), nullable=False),
        sa.Column("settlement_currency", sa.Text(), nullable=False),
        sa.Column("lines", Int64, nullable=False),
        sa.Column("quantity", Int64, nullable=False),
        sa.Column("list_nano", Int64),
        sa.Column("settled_nano", Int64),
        sa.Column("policy_nano", Int64),
        sa.Column("reference_nano", Int64),
        sa.ForeignKeyConstraint(["statement_id"], ["statements.id"], name=op.f("fk_statement_cells_statement_id")),
        sa.PrimaryKeyConstraint(
            "statement_id",
            "source_start_us",
            "model",
            "provider",
            "provider_model",
            "token_class",
            "price_row_id",
            "terms_id",
            "sell_id",
            "rate_ids",
            "list_currency",
            "settlement_currency",
            name=op.f("pk_statement_cells"),
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def _guard_postgresql() -> None:
    """What is issued stays: a draft may change, be issued and be thrown away, and nothing else may."""
    op.execute(
        "CREATE FUNCTION metergate_refuse_issued() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'an issued statement never changes; issue a credit note'; END $$"
    )
    op.execute(
        "CREATE TRIGGER issued BEFORE UPDATE OR DELETE ON statements FOR EACH ROW WHEN (OLD.state = 'issued') "
        "EXECUTE FUNCTION metergate_refuse_issued()"
    )
    op.execute(
        "CREATE TRIGGER issued BEFORE UPDATE OR DELETE ON statement_cells FOR EACH ROW "
        "EXECUTE FUNCTION metergate_refuse_issued()"
    )


def _guard_sqlite() -> None:
    for table, when in (("statements", "WHEN OLD.state = 'issued' "), ("statement_cells", "")):
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} {when}"
                "BEGIN SELECT RAISE(ABORT, 'an issued statement never changes; issue a credit note'); END"
            )
