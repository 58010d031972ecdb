"""Tables of the operator's side: role tokens, dashboard sessions, the audit log, and what idempotency keys were answered."""

from __future__ import annotations

import sqlalchemy as sa

from billing.columns import Flag, Int64
from billing.tables import metadata

ROLES = "role IN ('owner', 'billing', 'operator', 'viewer', 'team_admin')"
TEAM = "(role = 'team_admin') = (team_id IS NOT NULL)"

admin_tokens = sa.Table(
    "admin_tokens",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("team_id", sa.Text, sa.ForeignKey("teams.id")),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("created_at_us", Int64, nullable=False),
    sa.Column("expires_at_us", Int64),
    sa.Column("revoked_at_us", Int64),
    sa.CheckConstraint(ROLES, name="role"),
    sa.CheckConstraint(TEAM, name="team"),
    sqlite_strict=True,
)
"""HMAC-SHA256 of a whole token under the pepper, never the token."""

admin_sessions = sa.Table(
    "admin_sessions",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("token_id", sa.Text, sa.ForeignKey("admin_tokens.id")),
    sa.Column("credential", sa.LargeBinary, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("team_id", sa.Text),
    sa.Column("created_at_us", Int64, nullable=False),
    sa.Column("expires_at_us", Int64, nullable=False),
    sa.CheckConstraint(ROLES, name="role"),
    sa.CheckConstraint(TEAM, name="team"),
    sa.Index("ix_admin_sessions_expires_at_us", "expires_at_us"),
    sqlite_strict=True,
)
"""A dashboard session by the HMAC of its cookie. `credential` is the HMAC of what it was opened with: it ends with that."""

audit_log = sa.Table(
    "audit_log",
    metadata,
    sa.Column("sequence", Int64, primary_key=True, autoincrement=False),
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
    sa.Index("ix_audit_log_actor", "actor", "sequence"),
    sa.Index("ix_audit_log_target", "target", "sequence"),
    sqlite_strict=True,
)
"""Append-only by triggers. `hash` covers the row and the hash before it."""

audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("id", Int64, sa.CheckConstraint("id = 1", name="one_row"), primary_key=True, autoincrement=False),
    sa.Column("sequence", Int64, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sqlite_strict=True,
)
"""The newest entry's number and hash: the lock that makes entries queue, and what shows that the end was cut off."""

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("actor", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("answer", sa.Text, nullable=False),
    sa.Column("secret", Flag, nullable=False),
    sa.Column("created_at_us", Int64, nullable=False),
    sa.Index("ix_idempotency_keys_created_at_us", "created_at_us"),
    sqlite_strict=True,
)
"""What a write was answered under a caller's Idempotency-Key, kept for a day. An answer with a secret is kept without it."""
