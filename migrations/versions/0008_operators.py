"""The operator's side: role tokens, dashboard sessions, the hash-chained audit log, idempotency keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

Int64 = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
_FLAG = sa.Boolean().with_variant(sqlite.INTEGER(), "sqlite")
_ROLE = "role IN ('owner', 'billing', 'operator', 'viewer', 'team_admin')"
_TEAM = "(role = 'team_admin') = (team_id IS NOT NULL)"


def upgrade() -> None:
    _access()
    _audit()
    op.create_table(
        "idempotency_keys",
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("secret", _FLAG, nullable=False),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.PrimaryKeyConstraint("actor", "key", name=op.f("pk_idempotency_keys")),
        sqlite_strict=True,
    )
    op.create_index("ix_idempotency_keys_created_at_us", "idempotency_keys", ["created_at_us"])


def _access() -> None:
    op.create_table(
        "admin_tokens",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("expires_at_us", Int64),
        sa.Column("revoked_at_us", Int64),
        sa.CheckConstraint(_ROLE, name=op.f("ck_admin_tokens_role")),
        sa.CheckConstraint(_TEAM, name=op.f("ck_admin_tokens_team")),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name=op.f("fk_admin_tokens_team_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_admin_tokens")),
        sa.UniqueConstraint("digest", name=op.f("uq_admin_tokens_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "admin_sessions",
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("token_id", sa.Text),
        sa.Column("credential", sa.LargeBinary, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("expires_at_us", Int64, nullable=False),
        sa.CheckConstraint(_ROLE, name=op.f("ck_admin_sessions_role")),
        sa.CheckConstraint(_TEAM, name=op.f("ck_admin_sessions_team")),
        sa.ForeignKeyConstraint(["token_id"], ["admin_tokens.id"], name=op.f("fk_admin_sessions_token_id")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_admin_sessions")),
        sqlite_strict=True,
    )
    op.create_index("ix_admin_sessions_expires_at_us", "admin_sessions", ["expires_at_us"])


def _audit() -> None:
    op.create_table(
        "audit_log",
        sa.Column("sequence", Int64, nullable=False, autoincrement=False),
        sa.Column("at_us", Int64, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("address", sa.Text),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.Column("previous", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit_log")),
        sqlite_strict=True,
    )
    op.create_index("ix_audit_log_actor", "audit_log", ["actor", "sequence"])
    op.create_index("ix_audit_log_target", "audit_log", ["target", "sequence"])
    op.create_table(
        "audit_head",
        sa.Column(
            "id",
            Int64,
            sa.CheckConstraint("id = 1", name=op.f("ck_audit_head_one_row")),
            nullable=False,
            autoincrement=False,
        ),
        sa.Column("sequence", Int64, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
        sqlite_strict=True,
    )
    op.execute(f"INSERT INTO audit_head (id, sequence, hash) VALUES (1, 0, '{'0' * 64}')")
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_log "
            "FOR EACH ROW EXECUTE FUNCTION metergate_refuse()"
        )
        op.execute(
            "CREATE TRIGGER append_only_whole BEFORE TRUNCATE ON audit_log "
            "FOR EACH STATEMENT EXECUTE FUNCTION metergate_refuse()"
        )
        return
    for event in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER audit_log_no_{event.lower()} BEFORE {event} ON audit_log "
            "BEGIN SELECT RAISE(ABORT, 'rows of audit_log are append-only'); END"
        )
