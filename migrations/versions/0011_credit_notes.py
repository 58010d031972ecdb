"""Credit notes over a part of a statement: there may be several, and each says what it takes off.

SQLite cannot change a constraint: the table is made anew, under deferred foreign keys, and gets its guards back.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Int64

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

KINDS = "kind IN ('statement', 'credit_note', 'partial_credit_note')"
CORRECTS = "(kind = 'statement') = (corrects_id IS NULL)"
CREDIT = "(kind = 'partial_credit_note') = (credit_nano IS NOT NULL)"
COLUMNS = "id, team_id, kind, state, month, start_us, end_us, number, corrects_id, document, hash, created_at_us, issued_at_us"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        _alter()
    else:
        _make_anew()
    op.create_index("ix_statements_corrects", "statements", ["corrects_id"], unique=False)
    whole = sa.text("kind = 'credit_note'")
    op.create_index(
        "uq_statements_taken_back",
        "statements",
        ["corrects_id"],
        unique=True,
        sqlite_where=whole,
        postgresql_where=whole,
    )


def _alter() -> None:
    op.add_column("statements", sa.Column("credit_nano", Int64))
    op.drop_constraint(op.f("uq_statements_corrects_id"), "statements", type_="unique")
    for name, condition in (("kind", KINDS), ("corrects", CORRECTS)):
        op.drop_constraint(op.f(f"ck_statements_{name}"), "statements", type_="check")
        op.create_check_constraint(op.f(f"ck_statements_{name}"), "statements", condition)
    op.create_check_constraint(op.f("ck_statements_credit"), "statements", CREDIT)
    op.create_check_constraint(op.f("ck_statements_credit_above_zero"), "statements", "credit_nano > 0")


def _make_anew() -> None:
    op.execute("PRAGMA defer_foreign_keys = ON")
    op.execute("CREATE TEMPORARY TABLE statements_kept AS SELECT * FROM statements")
    op.drop_table("statements")
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
        sa.Column("credit_nano", Int64),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text()),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("issued_at_us", Int64),
        sa.CheckConstraint(KINDS, name=op.f("ck_statements_kind")),
        sa.CheckConstraint("state IN ('draft', 'issued')", name=op.f("ck_statements_state")),
        sa.CheckConstraint("(state = 'issued') = (number IS NOT NULL)", name=op.f("ck_statements_number")),
        sa.CheckConstraint(CORRECTS, name=op.f("ck_statements_corrects")),
        sa.CheckConstraint(CREDIT, name=op.f("ck_statements_credit")),
        sa.CheckConstraint("credit_nano > 0", name=op.f("ck_statements_credit_above_zero")),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name=op.f("fk_statements_team_id")),
        sa.ForeignKeyConstraint(["corrects_id"], ["statements.id"], name=op.f("fk_statements_corrects_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_statements")),
        sa.UniqueConstraint("number", name=op.f("uq_statements_number")),
        sqlite_strict=True,
    )
    op.execute(f"INSERT INTO statements ({COLUMNS}) SELECT {COLUMNS} FROM statements_kept")
    op.execute("DROP TABLE statements_kept")
    op.create_index("ix_statements_team", "statements", ["team_id", "start_us"], unique=False)
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER statements_no_{event.lower()} BEFORE {event} ON statements WHEN OLD.state = 'issued' "
            "BEGIN SELECT RAISE(ABORT, 'an issued statement never changes; issue a credit note'); END"
        )
