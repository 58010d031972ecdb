"""The tables of the coarse rollups: sums of `rollup_traffic` over longer spans, without the key or without the route.

What each holds, and why, stands in `billing.coarse`; how it gets there in `billing.folding`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, Index, SmallInteger, Table, Text, text
from sqlalchemy.dialects import sqlite

from billing.columns import Int64
from billing.tables import TRAFFIC_SUMS, metadata

CURRENCIES: Final = ("list_currency", "settlement_currency", "cost_currency")
ROUTE_NAMES: Final = ("team_id", "model", "provider", "provider_model")
KEY_NAMES: Final = ("team_id", "key_id")
_BY_ID: Final[dict[str, Any]] = {"sqlite_strict": True, "sqlite_with_rowid": False}


_DEFAULTS: Final = {"unreferenced_nano": text("0")}
UNREFERENCED: Final = "unreferenced_nano <> 0"


def _coarse(name: str, names: tuple[str, ...], *indexed: str) -> Table:
    return Table(
        name,
        metadata,
        *(Column(each, Int64, primary_key=True, autoincrement=False) for each in ("span_us", "bucket_us")),
        *(Column(each, Text, primary_key=True) for each in (*names, *CURRENCIES)),
        *(Column(each, Int64, nullable=False, server_default=_DEFAULTS.get(each)) for each in TRAFFIC_SUMS),
        *(Index(f"ix_{name}_{each.removesuffix('_id')}", each, "span_us", "bucket_us") for each in indexed),
        **_BY_ID,
    )


rollup_routes = _coarse("rollup_routes", ROUTE_NAMES, "team_id")
rollup_keys = _coarse("rollup_keys", KEY_NAMES, "team_id", "key_id")

Index(
    "ix_rollup_routes_unreferenced",
    rollup_routes.c.bucket_us,
    sqlite_where=text(UNREFERENCED),
    postgresql_where=text(UNREFERENCED),
)

rollup_mark = Table(
    "rollup_mark",
    metadata,
    Column(
        "id",
        SmallInteger().with_variant(sqlite.INTEGER(), "sqlite"),
        CheckConstraint("id = 1", name="one_row"),
        primary_key=True,
    ),
    Column("until_us", Int64, nullable=False),
    sqlite_strict=True,
)
"""One row: every span that ends by `until_us` stands in the coarse rollups."""
