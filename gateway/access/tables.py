"""Tables of access: keys, the hashes of their secrets, and what an installation remembers about itself."""

from __future__ import annotations

import sqlalchemy as sa

from billing.columns import Int64
from billing.tables import metadata

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("team_id", sa.Text, sa.ForeignKey("teams.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("public_id", sa.Text, nullable=False, unique=True),
    sa.Column("models", sa.Text),
    sa.Column("limits", sa.Text, nullable=False),
    sa.Column("model_limits", sa.Text, nullable=False),
    sa.Column("allowed_ips", sa.Text),
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("expires_at_us", Int64),
    sa.Column("revoked_at_us", Int64),
    sa.Column("created_at_us", Int64, nullable=False),
    sa.Column("version", Int64, nullable=False),
    sa.Index("ix_api_keys_created", "created_at_us", "id"),
    sa.Index("ix_api_keys_team", "team_id", "created_at_us", "id"),
    sa.Index("ix_api_keys_version", "version"),
    sqlite_strict=True,
)
"""One key. `version` is the catalog version of its last change, so that a poll reads only what changed."""

key_secrets = sa.Table(
    "key_secrets",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("key_id", sa.Text, sa.ForeignKey("api_keys.id"), nullable=False),
    sa.Column("created_at_us", Int64, nullable=False),
    sa.Column("expires_at_us", Int64),
    sa.Index("ix_key_secrets_key", "key_id"),
    sqlite_strict=True,
)
"""HMAC-SHA256 of a whole key under the pepper. A rotation adds one and lets the former ones end after the grace period."""

installation = sa.Table(
    "installation",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sqlite_strict=True,
)
"""Facts about this installation, such as the fingerprint of its key pepper."""
