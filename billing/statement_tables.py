"""Tables of what is closed and what leads to it: statements with their cells, journals' watermarks, drafts of price books.

An issued statement never changes (triggers refuse it): its `document` is the canonical JSON that was hashed, its cells are what
was stated, so that a later arrival is what the rollups hold and no statement has said yet.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import CheckConstraint, Column, ForeignKey, Identity, Index, Table, Text, text

from billing.columns import Int64
from billing.tables import metadata

statements = Table(
    "statements",
    metadata,
    Column("id", Int64, Identity(always=False), primary_key=True),
    Column("team_id", Text, ForeignKey("teams.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("month", Text, nullable=False),
    Column("start_us", Int64, nullable=False),
    Column("end_us", Int64, nullable=False),
    Column("number", Int64, unique=True),
    Column("corrects_id", Int64, ForeignKey("statements.id")),
    Column("credit_nano", Int64),
    Column("document", Text, nullable=False),
    Column("hash", Text),
    Column("created_at_us", Int64, nullable=False),
    Column("issued_at_us", Int64),
    CheckConstraint("kind IN ('statement', 'credit_note', 'partial_credit_note')", name="kind"),
    CheckConstraint("state IN ('draft', 'issued')", name="state"),
    CheckConstraint("(state = 'issued') = (number IS NOT NULL)", name="number"),
    CheckConstraint("(kind = 'statement') = (corrects_id IS NULL)", name="corrects"),
    CheckConstraint("(kind = 'partial_credit_note') = (credit_nano IS NOT NULL)", name="credit"),
    CheckConstraint("credit_nano > 0", name="credit_above_zero"),
    Index("ix_statements_team", "team_id", "start_us"),
    Index("ix_statements_corrects", "corrects_id"),
    Index(
        "uq_statements_taken_back",
        "corrects_id",
        unique=True,
        sqlite_where=text("kind = 'credit_note'"),
        postgresql_where=text("kind = 'credit_note'"),
    ),
    sqlite_strict=True,
)
"""One row per draft, issued statement and credit note. A statement is taken back whole once, and `credit_nano` taken off it by
each note over a part. `number` counts issued documents of the installation without a gap;
`hash` is over the previous document's hash and this document."""

CELL_KEY: Final = (
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
)

statement_cells = Table(
    "statement_cells",
    metadata,
    Column("statement_id", Int64, ForeignKey("statements.id"), primary_key=True, autoincrement=False),
    Column("source_start_us", Int64, primary_key=True, autoincrement=False),
    *(
        Column(
            name,
            Int64 if name in ("price_row_id", "terms_id", "sell_id") else Text,
            primary_key=True,
            autoincrement=False,
        )
        for name in CELL_KEY[2:]
    ),
    Column("lines", Int64, nullable=False),
    Column("quantity", Int64, nullable=False),
    Column("list_nano", Int64),
    Column("settled_nano", Int64),
    Column("policy_nano", Int64),
    Column("reference_nano", Int64),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""What an issued document stated, at the grain of `rollup_money` summed over the month that starts at `source_start_us`; a
credit note's cells are negative."""

journal_watermarks = Table(
    "journal_watermarks",
    metadata,
    Column("journal", Text, primary_key=True),
    Column("watermark_us", Int64, nullable=False),
    Column("complete_at_us", Int64),
    Column("updated_at_us", Int64, nullable=False),
    sqlite_strict=True,
)
"""Per journal: every request whose id is older than `watermark_us` stands in the books."""

price_drafts = Table(
    "price_drafts",
    metadata,
    Column("id", Int64, Identity(always=False), primary_key=True),
    Column("state", Text, nullable=False),
    Column("note", Text),
    Column("rows", Text, nullable=False),
    Column("created_at_us", Int64, nullable=False),
    Column("closed_at_us", Int64),
    Column("version", Int64, ForeignKey("price_books.version")),
    CheckConstraint("state IN ('draft', 'published', 'discarded')", name="state"),
    sqlite_strict=True,
)
"""Prices on their way into the book: `rows` is JSON, checked when the draft was made and again when it is published."""
