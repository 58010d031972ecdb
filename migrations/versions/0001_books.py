"""The books: catalog, usage rows with lines and attempts, corrections, rollups."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Flag, Int64, RequestIdType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = (
    "price_books",
    "price_rows",
    "rate_rows",
    "terms_rows",
    "usage",
    "usage_lines",
    "attempts",
    "corrections",
)
KEPT_FOR_EVER = ("price_books", "price_rows", "rate_rows", "terms_rows")
PARTITIONED = ("usage", "usage_lines", "attempts")


def upgrade() -> None:
    _catalog()
    _usage()
    _rollups()
    op.execute("INSERT INTO catalog_version (id, version) VALUES (1, 1)")
    if op.get_bind().dialect.name == "postgresql":
        _postgresql()
    else:
        _sqlite()


def _postgresql() -> None:
    """Default partitions, and triggers that refuse to change what was written."""
    for table in PARTITIONED:
        op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")
    op.execute(
        "CREATE FUNCTION metergate_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'rows of % are append-only', TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        events = "UPDATE OR DELETE" if table in KEPT_FOR_EVER else "UPDATE"
        op.execute(
            f"CREATE TRIGGER append_only BEFORE {events} ON {table} FOR EACH ROW EXECUTE FUNCTION metergate_refuse()"
        )


def _sqlite() -> None:
    for table in APPEND_ONLY:
        for event in ("UPDATE", "DELETE") if table in KEPT_FOR_EVER else ("UPDATE",):
            op.execute(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are append-only'); END"
            )


def _catalog() -> None:
    op.create_table(
        "catalog_version",
        sa.Column("id", Int64, sa.CheckConstraint("id = 1", name=op.f("ck_catalog_version_one_row")), nullable=False),
        sa.Column("version", Int64, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalog_version")),
        sqlite_strict=True,
    )
    op.create_table(
        "teams",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("settlement_currency", sa.Text(), nullable=False),
        sa.Column("billing", sa.Text(), nullable=False),
        sa.Column("credit_limit_nano", Int64, nullable=True),
        sa.Column("lost_charge", sa.Text(), nullable=False),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.CheckConstraint("billing IN ('postpaid', 'prepaid')", name=op.f("ck_teams_billing")),
        sa.CheckConstraint("lost_charge IN ('none', 'input', 'reservation')", name=op.f("ck_teams_lost_charge")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_teams")),
        sa.UniqueConstraint("name", name=op.f("uq_teams_name")),
        sqlite_strict=True,
    )
    op.create_table(
        "price_books",
        sa.Column("version", Int64, autoincrement=False, nullable=False),
        sa.Column("published_at_us", Int64, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_price_books")),
        sqlite_strict=True,
    )
    op.create_table(
        "price_rows",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("book_version", Int64, nullable=False),
        sa.Column("price_list", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("token_class", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("amount_micro", Int64, nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("service_tier", sa.Text(), nullable=False),
        sa.Column("processing", sa.Text(), nullable=False),
        sa.Column("min_input_tokens", Int64, nullable=False),
        sa.Column("effective_from_us", Int64, nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("recorded_at_us", Int64, nullable=False),
        sa.CheckConstraint("amount_micro >= 0", name=op.f("ck_price_rows_amount")),
        sa.CheckConstraint("min_input_tokens >= 0", name=op.f("ck_price_rows_threshold")),
        sa.ForeignKeyConstraint(["book_version"], ["price_books.version"], name=op.f("fk_price_rows_book_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_rows")),
        sqlite_strict=True,
    )
    op.create_index(
        "uq_price_rows_key",
        "price_rows",
        ["price_list", "model", "token_class", "service_tier", "processing", "min_input_tokens", "effective_from_us"],
        unique=True,
    )
    op.create_table(
        "rate_rows",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("quote", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("rate_pico", Int64, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("effective_from_us", Int64, nullable=False),
        sa.Column("recorded_at_us", Int64, nullable=False),
        sa.CheckConstraint("kind IN ('reference', 'policy', 'contract')", name=op.f("ck_rate_rows_kind")),
        sa.CheckConstraint("base <> quote", name=op.f("ck_rate_rows_pair")),
        sa.CheckConstraint("rate_pico > 0", name=op.f("ck_rate_rows_rate")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rate_rows")),
        sqlite_strict=True,
    )
    op.create_table(
        "terms_rows",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=True),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("rate_pico", Int64, nullable=True),
        sa.Column("bps", Int64, nullable=True),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("quote", sa.Text(), nullable=False),
        sa.Column("effective_from_us", Int64, nullable=False),
        sa.Column("recorded_at_us", Int64, nullable=False),
        sa.CheckConstraint("policy IN ('fixed', 'market_plus_bps')", name=op.f("ck_terms_rows_policy")),
        sa.CheckConstraint("(team_id IS NULL) <> (provider IS NULL)", name=op.f("ck_terms_rows_party")),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name=op.f("fk_terms_rows_team_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_terms_rows")),
        sqlite_strict=True,
    )
    op.create_table(
        "budgets",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("scope_id", sa.Text(), nullable=True),
        sa.Column("amount_nano", Int64, nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("hard", Flag(), nullable=False),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("ended_at_us", Int64, nullable=True),
        sa.CheckConstraint("(scope = 'all') = (scope_id IS NULL)", name=op.f("ck_budgets_scope_id")),
        sa.CheckConstraint("period IN ('day', 'week', 'month', 'total')", name=op.f("ck_budgets_period")),
        sa.CheckConstraint("scope IN ('team', 'key', 'all')", name=op.f("ck_budgets_scope")),
        sa.CheckConstraint("amount_nano >= 0", name=op.f("ck_budgets_amount")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budgets")),
        sqlite_strict=True,
    )


def _usage() -> None:
    op.create_table(
        "usage",
        sa.Column("id", RequestIdType(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("corrects_id", RequestIdType(), nullable=True),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=True),
        sa.Column("provider_model", sa.Text(), nullable=True),
        sa.Column("surface", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("estimated", Flag(), nullable=False),
        sa.Column("streamed", Flag(), nullable=False),
        sa.Column("total_input", Int64, nullable=False),
        sa.Column("total_output", Int64, nullable=False),
        sa.Column("reasoning", Int64, nullable=False),
        sa.Column("compute_us", Int64, nullable=False),
        sa.Column("flaw", sa.Text(), nullable=True),
        sa.Column("list_currency", sa.Text(), nullable=True),
        sa.Column("list_nano", Int64, nullable=True),
        sa.Column("settlement_currency", sa.Text(), nullable=False),
        sa.Column("settled_nano", Int64, nullable=True),
        sa.Column("policy_nano", Int64, nullable=True),
        sa.Column("reference_nano", Int64, nullable=True),
        sa.Column("cost_currency", sa.Text(), nullable=True),
        sa.Column("cost_nano", Int64, nullable=True),
        sa.Column("terms_id", Int64, nullable=True),
        sa.Column("rate_ids", sa.Text(), nullable=False),
        sa.Column("unpriced", sa.Text(), nullable=True),
        sa.Column("pin_book", Int64, nullable=False),
        sa.Column("pin_rates", Int64, nullable=False),
        sa.Column("pin_terms", Int64, nullable=False),
        sa.Column("tags", sa.Text(), nullable=False),
        sa.Column("latency_us", Int64, nullable=False),
        sa.Column("ttft_us", Int64, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("recorded_at_us", Int64, nullable=False),
        sa.CheckConstraint("kind IN ('usage', 'reversal', 'correction')", name=op.f("ck_usage_kind")),
        sa.CheckConstraint(
            "status IN ('completed', 'incomplete', 'cancelled', 'failed', 'lost')", name=op.f("ck_usage_status")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage")),
        postgresql_partition_by="RANGE (id)",
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_key", "usage", ["key_id", "id"], unique=False)
    op.create_index("ix_usage_team", "usage", ["team_id", "id"], unique=False)
    op.create_table(
        "usage_lines",
        sa.Column("usage_id", RequestIdType(), nullable=False),
        sa.Column("token_class", sa.Text(), nullable=False),
        sa.Column("quantity", Int64, nullable=False),
        sa.Column("price_row_id", Int64, nullable=True),
        sa.Column("currency", sa.Text(), nullable=True),
        sa.Column("list_nano", Int64, nullable=True),
        sa.Column("settled_nano", Int64, nullable=True),
        sa.Column("policy_nano", Int64, nullable=True),
        sa.Column("reference_nano", Int64, nullable=True),
        sa.PrimaryKeyConstraint("usage_id", "token_class", name=op.f("pk_usage_lines")),
        postgresql_partition_by="RANGE (usage_id)",
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "attempts",
        sa.Column("usage_id", RequestIdType(), nullable=False),
        sa.Column("sequence", Int64, autoincrement=False, nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("provider_model", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Text(), nullable=True),
        sa.Column("cost_currency", sa.Text(), nullable=True),
        sa.Column("cost_nano", Int64, nullable=True),
        sa.Column("price_row_ids", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("started_at_us", Int64, nullable=False),
        sa.Column("latency_us", Int64, nullable=False),
        sa.Column("ttft_us", Int64, nullable=True),
        sa.Column("service_tier", sa.Text(), nullable=False),
        sa.Column("processing", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("usage_id", "sequence", name=op.f("pk_attempts")),
        postgresql_partition_by="RANGE (usage_id)",
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "corrections",
        sa.Column("original_id", RequestIdType(), nullable=False),
        sa.Column("reversal_id", RequestIdType(), nullable=False),
        sa.Column("replacement_id", RequestIdType(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("recorded_at_us", Int64, nullable=False),
        sa.PrimaryKeyConstraint("original_id", name=op.f("pk_corrections")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


def _rollups() -> None:
    op.create_table(
        "rollup_money",
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("bucket_us", Int64, autoincrement=False, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("provider_model", sa.Text(), nullable=False),
        sa.Column("token_class", sa.Text(), nullable=False),
        sa.Column("price_row_id", Int64, autoincrement=False, nullable=False),
        sa.Column("terms_id", Int64, autoincrement=False, nullable=False),
        sa.Column("rate_ids", sa.Text(), nullable=False),
        sa.Column("list_currency", sa.Text(), nullable=False),
        sa.Column("settlement_currency", sa.Text(), nullable=False),
        sa.Column("lines", Int64, nullable=False),
        sa.Column("quantity", Int64, nullable=False),
        sa.Column("list_nano", Int64, nullable=True),
        sa.Column("settled_nano", Int64, nullable=True),
        sa.Column("policy_nano", Int64, nullable=True),
        sa.Column("reference_nano", Int64, nullable=True),
        sa.PrimaryKeyConstraint(
            "team_id",
            "bucket_us",
            "model",
            "provider",
            "provider_model",
            "token_class",
            "price_row_id",
            "terms_id",
            "rate_ids",
            "list_currency",
            "settlement_currency",
            name=op.f("pk_rollup_money"),
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "rollup_traffic",
        sa.Column("bucket_us", Int64, autoincrement=False, nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("provider_model", sa.Text(), nullable=False),
        sa.Column("list_currency", sa.Text(), nullable=False),
        sa.Column("settlement_currency", sa.Text(), nullable=False),
        sa.Column("cost_currency", sa.Text(), nullable=False),
        sa.Column("requests", Int64, nullable=False),
        sa.Column("errors", Int64, nullable=False),
        sa.Column("unpriced", Int64, nullable=False),
        sa.Column("estimated", Int64, nullable=False),
        sa.Column("input", Int64, nullable=False),
        sa.Column("cache_read", Int64, nullable=False),
        sa.Column("cache_write_5m", Int64, nullable=False),
        sa.Column("cache_write_1h", Int64, nullable=False),
        sa.Column("output", Int64, nullable=False),
        sa.Column("audio_input", Int64, nullable=False),
        sa.Column("audio_output", Int64, nullable=False),
        sa.Column("image_input", Int64, nullable=False),
        sa.Column("image_output", Int64, nullable=False),
        sa.Column("web_search", Int64, nullable=False),
        sa.Column("request", Int64, nullable=False),
        sa.Column("reasoning", Int64, nullable=False),
        sa.Column("list_nano", Int64, nullable=False),
        sa.Column("settled_nano", Int64, nullable=False),
        sa.Column("policy_nano", Int64, nullable=False),
        sa.Column("reference_nano", Int64, nullable=False),
        sa.Column("cost_nano", Int64, nullable=False),
        sa.Column("latency_us", Int64, nullable=False),
        sa.Column("latency_le_100_ms", Int64, nullable=False),
        sa.Column("latency_le_250_ms", Int64, nullable=False),
        sa.Column("latency_le_500_ms", Int64, nullable=False),
        sa.Column("latency_le_1000_ms", Int64, nullable=False),
        sa.Column("latency_le_2500_ms", Int64, nullable=False),
        sa.Column("latency_le_5000_ms", Int64, nullable=False),
        sa.Column("latency_le_10000_ms", Int64, nullable=False),
        sa.Column("latency_le_30000_ms", Int64, nullable=False),
        sa.Column("latency_above_ms", Int64, nullable=False),
        sa.PrimaryKeyConstraint(
            "bucket_us",
            "team_id",
            "key_id",
            "model",
            "provider",
            "provider_model",
            "list_currency",
            "settlement_currency",
            "cost_currency",
            name=op.f("pk_rollup_traffic"),
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_rollup_traffic_key", "rollup_traffic", ["key_id", "bucket_us"], unique=False)
    op.create_index("ix_rollup_traffic_team", "rollup_traffic", ["team_id", "bucket_us"], unique=False)
