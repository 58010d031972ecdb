"""Coarse rollups beside the quarter-hourly traffic. They begin empty; folding fills them from what is there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Int64

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_CURRENCIES = ("list_currency", "settlement_currency", "cost_currency")
_LATENCIES = ("100", "250", "500", "1000", "2500", "5000", "10000", "30000")
_SUMS = (
    "requests", "errors", "unpriced", "estimated", "input", "cache_read", "cache_write_5m", "cache_write_1h", "output",
    "audio_input", "audio_output", "image_input", "image_output", "web_search", "request", "reasoning", "list_nano",
    "settled_nano", "policy_nano", "reference_nano", "cost_nano", "margin_nano", "latency_us",
    *(f"latency_le_{bound}_ms" for bound in _LATENCIES), "latency_above_ms", "negative_margin",
)  # fmt: skip


def upgrade() -> None:
    _coarse("rollup_routes", ("team_id", "model", "provider", "provider_model"), "team_id")
    _coarse("rollup_keys", ("team_id", "key_id"), "team_id", "key_id")
    op.create_table(
        "rollup_mark",
        sa.Column("id", Int64, sa.CheckConstraint("id = 1", name=op.f("ck_rollup_mark_one_row")), nullable=False),
        sa.Column("until_us", Int64, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollup_mark")),
        sqlite_strict=True,
    )
    op.execute("INSERT INTO rollup_mark (id, until_us) VALUES (1, 0)")


def _coarse(name: str, names: tuple[str, ...], *indexed: str) -> None:
    key = ("span_us", "bucket_us", *names, *_CURRENCIES)
    op.create_table(
        name,
        *(sa.Column(each, Int64, autoincrement=False, nullable=False) for each in key[:2]),
        *(sa.Column(each, sa.Text(), nullable=False) for each in key[2:]),
        *(sa.Column(each, Int64, nullable=False) for each in _SUMS),
        sa.PrimaryKeyConstraint(*key, name=op.f(f"pk_{name}")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    for each in indexed:
        op.create_index(f"ix_{name}_{each.removesuffix('_id')}", name, [each, "span_us", "bucket_us"])
