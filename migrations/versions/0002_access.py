"""Access: team keys, the keyed hashes of their secrets, and what an installation remembers about itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INT64 = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("public_id", sa.Text, nullable=False),
        sa.Column("models", sa.Text),
        sa.Column("limits", sa.Text, nullable=False),
        sa.Column("model_limits", sa.Text, nullable=False),
        sa.Column("allowed_ips", sa.Text),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("expires_at_us", _INT64),
        sa.Column("revoked_at_us", _INT64),
        sa.Column("created_at_us", _INT64, nullable=False),
        sa.Column("version", _INT64, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("public_id", name="uq_api_keys_public_id"),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name="fk_api_keys_team_id"),
        sqlite_strict=True,
    )
    op.create_index("ix_api_keys_created", "api_keys", ["created_at_us", "id"])
    op.create_index("ix_api_keys_team", "api_keys", ["team_id", "created_at_us", "id"])
    op.create_index("ix_api_keys_version", "api_keys", ["version"])
    op.create_table(
        "key_secrets",
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("created_at_us", _INT64, nullable=False),
        sa.Column("expires_at_us", _INT64),
        sa.PrimaryKeyConstraint("digest", name="pk_key_secrets"),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_key_secrets_key_id"),
        sqlite_strict=True,
    )
    op.create_index("ix_key_secrets_key", "key_secrets", ["key_id"])
    op.create_table(
        "installation",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_installation"),
        sqlite_strict=True,
    )
