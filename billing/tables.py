"""Every table of the books. One MetaData for SQLite (STRICT) and PostgreSQL; the migrations build exactly this.

Amounts are BIGINT nano (1e-9 currency units), prices micro (1e-6), rates pico (1e-12), times microseconds UTC. Catalog rows
(prices, rates, terms) and usage rows are append-only: the migrations add triggers that refuse an UPDATE. On PostgreSQL the
usage tables are partitioned by month over the request id, whose first 48 bits are its time.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, ForeignKey, Identity, Index, MetaData, SmallInteger, Table, Text, text
from sqlalchemy.dialects import sqlite

from billing.columns import Flag, Int64, RequestIdType
from billing.usage import TokenClass

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _count(name: str, **options: Any) -> Column[int]:
    return Column(name, Int64, nullable=False, **options)


def _amount(name: str) -> Column[int]:
    return Column(name, Int64, nullable=True)


def _text(name: str, **options: Any) -> Column[str]:
    return Column(name, Text, nullable=False, **options)


def _serial() -> Column[int]:
    return Column("id", Int64, Identity(always=False), primary_key=True)


def _one_of(name: str, *values: str) -> str:
    """Compared one by one: for IN, SQLite would build a table of the values at every row."""
    return " OR ".join(f"{name} = '{value}'" for value in values)


catalog_version = Table(
    "catalog_version",
    metadata,
    Column(
        "id",
        SmallInteger().with_variant(sqlite.INTEGER(), "sqlite"),
        CheckConstraint("id = 1", name="one_row"),
        primary_key=True,
    ),
    _count("version"),
    sqlite_strict=True,
)

teams = Table(
    "teams",
    metadata,
    _text("id", primary_key=True),
    _text("name", unique=True),
    _text("settlement_currency"),
    _text("billing"),
    _amount("credit_limit_nano"),
    _text("lost_charge"),
    _count("created_at_us"),
    _text("timezone", server_default="UTC"),
    CheckConstraint("billing IN ('postpaid', 'prepaid')", name="billing"),
    CheckConstraint("lost_charge IN ('none', 'input', 'reservation')", name="lost_charge"),
    sqlite_strict=True,
)

price_books = Table(
    "price_books",
    metadata,
    Column("version", Int64, primary_key=True, autoincrement=False),
    _count("published_at_us"),
    _text("hash"),
    Column("note", Text),
    sqlite_strict=True,
)

price_rows = Table(
    "price_rows",
    metadata,
    _serial(),
    Column("book_version", Int64, ForeignKey("price_books.version"), nullable=False),
    _text("price_list"),
    _text("model"),
    _text("token_class"),
    _text("currency"),
    _count("amount_micro"),
    _text("unit"),
    _text("service_tier"),
    _text("processing"),
    _count("min_input_tokens"),
    _count("effective_from_us"),
    Column("source", Text),
    _count("recorded_at_us"),
    CheckConstraint("amount_micro >= 0", name="amount"),
    CheckConstraint("min_input_tokens >= 0", name="threshold"),
    Index(
        "uq_price_rows_key",
        "price_list",
        "model",
        "token_class",
        "service_tier",
        "processing",
        "min_input_tokens",
        "effective_from_us",
        "book_version",
        unique=True,
    ),
    sqlite_strict=True,
)
"""A second row for a key and moment supersedes the first one from its version of the book on."""

rate_rows = Table(
    "rate_rows",
    metadata,
    _serial(),
    _text("base"),
    _text("quote"),
    _text("kind"),
    _count("rate_pico"),
    _text("source"),
    _count("effective_from_us"),
    _count("recorded_at_us"),
    CheckConstraint("kind IN ('reference', 'policy', 'contract')", name="kind"),
    CheckConstraint("rate_pico > 0", name="rate"),
    CheckConstraint("base <> quote", name="pair"),
    sqlite_strict=True,
)

terms_rows = Table(
    "terms_rows",
    metadata,
    _serial(),
    Column("team_id", Text, ForeignKey("teams.id")),
    Column("provider", Text),
    _text("policy"),
    _amount("rate_pico"),
    _amount("bps"),
    _text("base"),
    _text("quote"),
    _count("effective_from_us"),
    _count("recorded_at_us"),
    CheckConstraint("(team_id IS NULL) <> (provider IS NULL)", name="party"),
    CheckConstraint("policy IN ('fixed', 'market_plus_bps')", name="policy"),
    sqlite_strict=True,
)

sell_rows = Table(
    "sell_rows",
    metadata,
    _serial(),
    Column("team_id", Text, ForeignKey("teams.id"), nullable=False),
    Column("price_list", Text),
    Column("model", Text),
    Column("sell_list", Text),
    _amount("multiplier_micro"),
    _count("effective_from_us"),
    _count("recorded_at_us"),
    CheckConstraint("(sell_list IS NULL) <> (multiplier_micro IS NULL)", name="one"),
    CheckConstraint("multiplier_micro >= 0", name="multiplier"),
    sqlite_strict=True,
)
"""What a team is sold at, where that is not the provider's price: another price list, or a multiple of the price."""

budgets = Table(
    "budgets",
    metadata,
    _serial(),
    _text("scope"),
    Column("scope_id", Text),
    _count("amount_nano"),
    _text("currency"),
    _text("period"),
    _text("timezone"),
    Column("hard", Flag, nullable=False),
    _count("created_at_us"),
    Column("ended_at_us", Int64),
    Column("thresholds", Text),
    CheckConstraint("scope IN ('team', 'key', 'all')", name="scope"),
    CheckConstraint("(scope = 'all') = (scope_id IS NULL)", name="scope_id"),
    CheckConstraint("period IN ('day', 'week', 'month', 'total')", name="period"),
    CheckConstraint("amount_nano >= 0", name="amount"),
    sqlite_strict=True,
)

OVERFLOWED: Final = "substr(unpriced, 1, 8) = 'overflow'"
"""A row without an amount because that would leave 64 bits (`rated.OVERFLOW`); what its index holds."""

NOT_COMPLETED: Final = "status <> 'completed'"
"""A request that did not end well; what its index holds. A query has to say it in these words to be answered from there."""

_BY_ID: Final[dict[str, Any]] = {"sqlite_strict": True, "sqlite_with_rowid": False}

usage = Table(
    "usage",
    metadata,
    Column("id", RequestIdType, primary_key=True),
    _text("kind"),
    Column("corrects_id", RequestIdType),
    _text("team_id"),
    _text("key_id"),
    _text("model"),
    Column("provider", Text),
    Column("provider_model", Text),
    _text("surface"),
    _text("status"),
    Column("estimated", Flag, nullable=False),
    Column("streamed", Flag, nullable=False),
    _count("total_input"),
    _count("total_output"),
    _count("reasoning"),
    _count("compute_us"),
    Column("flaw", Text),
    Column("list_currency", Text),
    _amount("list_nano"),
    _text("settlement_currency"),
    _amount("settled_nano"),
    _amount("policy_nano"),
    _amount("reference_nano"),
    Column("cost_currency", Text),
    _amount("cost_nano"),
    Column("terms_id", Int64),
    _text("rate_ids"),
    Column("unpriced", Text),
    _count("pin_book"),
    _count("pin_rates"),
    _count("pin_terms"),
    _count("pin_sell", server_default=text("0")),
    Column("sell_id", Int64),
    _amount("margin_nano"),
    _text("tags"),
    _count("latency_us"),
    Column("ttft_us", Int64),
    Column("error", Text),
    _count("recorded_at_us"),
    CheckConstraint(_one_of("kind", "usage", "reversal", "correction"), name="kind"),
    CheckConstraint(_one_of("status", "completed", "incomplete", "cancelled", "failed", "lost"), name="status"),
    Index("ix_usage_team", "team_id", "id"),
    Index("ix_usage_key", "key_id", "id"),
    Index("ix_usage_overflow", "team_id", "id", sqlite_where=text(OVERFLOWED), postgresql_where=text(OVERFLOWED)),
    Index(
        "ix_usage_not_completed", "status", "id", sqlite_where=text(NOT_COMPLETED), postgresql_where=text(NOT_COMPLETED)
    ),
    postgresql_partition_by="RANGE (id)",
    **_BY_ID,
)

usage_lines = Table(
    "usage_lines",
    metadata,
    Column("usage_id", RequestIdType, primary_key=True),
    _text("token_class", primary_key=True),
    _count("quantity"),
    Column("price_row_id", Int64),
    Column("currency", Text),
    _amount("list_nano"),
    _amount("settled_nano"),
    _amount("policy_nano"),
    _amount("reference_nano"),
    postgresql_partition_by="RANGE (usage_id)",
    **_BY_ID,
)

attempts = Table(
    "attempts",
    metadata,
    Column("usage_id", RequestIdType, primary_key=True),
    Column("sequence", Int64, primary_key=True, autoincrement=False),
    _text("provider"),
    _text("provider_model"),
    _text("status"),
    Column("tokens", Text),
    Column("cost_currency", Text),
    _amount("cost_nano"),
    _text("price_row_ids"),
    Column("error", Text),
    _count("started_at_us"),
    _count("latency_us"),
    Column("ttft_us", Int64),
    _text("service_tier"),
    _text("processing"),
    Column("hour_currency", Text),
    _amount("hour_nano"),
    postgresql_partition_by="RANGE (usage_id)",
    **_BY_ID,
)
"""A cost comes out of `price_row_ids`, or out of engine time (in `tokens`) at `hour_nano` an hour."""

corrections = Table(
    "corrections",
    metadata,
    Column("original_id", RequestIdType, primary_key=True),
    Column("reversal_id", RequestIdType, nullable=False),
    Column("replacement_id", RequestIdType),
    _text("reason"),
    _text("actor"),
    _count("recorded_at_us"),
    **_BY_ID,
)

PARTITIONED: Final = (("usage", "id"), ("usage_lines", "usage_id"), ("attempts", "usage_id"))
"""On PostgreSQL: table and the column it is partitioned by."""

MONEY_KEY: Final = (
    "team_id",
    "bucket_us",
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
)
MONEY_SUMS: Final = ("lines", "quantity", "list_nano", "settled_nano", "policy_nano", "reference_nano")

rollup_money = Table(
    "rollup_money",
    metadata,
    *(
        _count(name, primary_key=True, autoincrement=False)
        if name in ("bucket_us", "price_row_id", "terms_id", "sell_id")
        else _text(name, primary_key=True)
        for name in MONEY_KEY
    ),
    _count("lines"),
    _count("quantity"),
    _amount("list_nano"),
    _amount("settled_nano"),
    _amount("policy_nano"),
    _amount("reference_nano"),
    **_BY_ID,
)
"""Per UTC quarter-hour, for statements: what was sold to whom at which price (`sell_id` may multiply it), rates and terms. 0
and '' stand for none. A sum
is NULL exactly when its lines have no such amount: lines of one key share their price, rates and terms."""

TRAFFIC_KEY: Final = (
    "bucket_us",
    "team_id",
    "key_id",
    "model",
    "provider",
    "provider_model",
    "list_currency",
    "settlement_currency",
    "cost_currency",
)
TOKEN_COLUMNS: Final = tuple(str(token_class) for token_class in TokenClass)
LATENCY_BOUNDS_MS: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
LATENCY_COLUMNS: Final = (*(f"latency_le_{bound}_ms" for bound in LATENCY_BOUNDS_MS), "latency_above_ms")
MONEY_COLUMNS: Final = ("list_nano", "settled_nano", "policy_nano", "reference_nano", "cost_nano", "margin_nano")
TRAFFIC_SUMS: Final = (
    "requests",
    "errors",
    "unpriced",
    "estimated",
    *TOKEN_COLUMNS,
    "reasoning",
    *MONEY_COLUMNS,
    "latency_us",
    *LATENCY_COLUMNS,
    "negative_margin",
    "unreferenced_nano",
)
_ADDED_LATER: Final = ("margin_nano", "negative_margin", "unreferenced_nano")

rollup_traffic = Table(
    "rollup_traffic",
    metadata,
    *(
        _count(name, primary_key=True, autoincrement=False) if name == "bucket_us" else _text(name, primary_key=True)
        for name in TRAFFIC_KEY
    ),
    *(_count(name, server_default=text("0") if name in _ADDED_LATER else None) for name in TRAFFIC_SUMS),
    Index("ix_rollup_traffic_team", "team_id", "bucket_us"),
    Index("ix_rollup_traffic_key", "key_id", "bucket_us"),
    **_BY_ID,
)
"""Per UTC quarter-hour, for dashboards, budgets and reports: requests, tokens and money of one key on one route. Money is in
here too, because a key's spend is asked for at every admission. Unpriced requests add nothing to the sums and one to
`unpriced`; `unreferenced_nano` is what of the list amount had no reference rate; a latency column counts the requests up to
its bound and above the previous one."""
