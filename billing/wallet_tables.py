"""The tables of the wallets: running balances, their append-only entries, redemption codes and low-balance events.

Usage is folded: one entry per wallet and UTC quarter-hour, which the usage rows of that quarter increment in their own
transaction; it is the only kind of entry that the database lets anybody update. The balance of a wallet is the plain sum of
its entries, and `wallets.balance_nano` the same figure kept running.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import CheckConstraint, Column, ForeignKey, Identity, Index, Table, Text

from billing.columns import Flag, Int64
from billing.tables import metadata

ENTRY_KINDS: Final = ("top_up", "code", "adjustment", "usage", "reversal", "expiry")
_BY_ID: Final[dict[str, Any]] = {"sqlite_strict": True, "sqlite_with_rowid": False}


def _quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)


wallets = Table(
    "wallets",
    metadata,
    Column("team_id", Text, primary_key=True),
    Column("currency", Text, primary_key=True),
    Column("balance_nano", Int64, nullable=False),
    Column("low_balance_nano", Int64),
    Column("is_low", Flag, nullable=False),
    **_BY_ID,
)
"""Made by the first entry. `low_balance_nano` is the threshold below which an event is due (None: never)."""

wallet_entries = Table(
    "wallet_entries",
    metadata,
    Column("id", Int64, Identity(always=False), primary_key=True),
    Column("team_id", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("amount_nano", Int64, nullable=False),
    Column("balance_nano", Int64),
    Column("at_us", Int64, nullable=False),
    Column("bucket_us", Int64),
    Column("requests", Int64, nullable=False),
    Column("external_id", Text),
    Column("method", Text),
    Column("paid_currency", Text),
    Column("paid_nano", Int64),
    Column("rate_pico", Int64),
    Column("reason", Text),
    Column("actor", Text),
    Column("expires_at_us", Int64),
    Column("reverses_id", Int64, ForeignKey("wallet_entries.id")),
    Column("credit_id", Int64, ForeignKey("wallet_entries.id")),
    CheckConstraint(f"kind IN ({_quoted(ENTRY_KINDS)})", name="kind"),
    CheckConstraint("(kind = 'usage') = (bucket_us IS NOT NULL)", name="bucket"),
    CheckConstraint("(kind = 'reversal') = (reverses_id IS NOT NULL)", name="reverses"),
    CheckConstraint("(kind = 'expiry') = (credit_id IS NOT NULL)", name="credit"),
    Index("uq_wallet_entries_bucket", "team_id", "currency", "bucket_us", unique=True),
    Index("uq_wallet_entries_external", "external_id", unique=True),
    Index("uq_wallet_entries_reverses", "reverses_id", unique=True),
    Index("ix_wallet_entries_wallet", "team_id", "currency", "id"),
    Index("ix_wallet_entries_expires", "expires_at_us"),
    sqlite_strict=True,
)
"""`balance_nano` is the balance right after the entry (none for folded usage, which grows). What was paid in another currency
than the wallet's keeps that amount and the rate it came in at; a reversal takes back the entry's own amount."""

redemption_batches = Table(
    "redemption_batches",
    metadata,
    Column("id", Int64, Identity(always=False), primary_key=True),
    Column("currency", Text, nullable=False),
    Column("amount_nano", Int64, nullable=False),
    Column("codes", Int64, nullable=False),
    Column("redeem_until_us", Int64),
    Column("credit_expires_at_us", Int64),
    Column("note", Text),
    Column("actor", Text, nullable=False),
    Column("created_at_us", Int64, nullable=False),
    Column("ended_at_us", Int64),
    CheckConstraint("amount_nano > 0", name="amount"),
    sqlite_strict=True,
)

redemption_codes = Table(
    "redemption_codes",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("batch_id", Int64, ForeignKey("redemption_batches.id"), nullable=False),
    Column("hint", Text, nullable=False),
    Column("team_id", Text),
    Column("redeemed_at_us", Int64),
    Column("entry_id", Int64, ForeignKey("wallet_entries.id")),
    CheckConstraint("(team_id IS NULL) = (redeemed_at_us IS NULL)", name="redeemed"),
    Index("ix_redemption_codes_batch", "batch_id", "digest"),
    **_BY_ID,
)
"""Only the SHA-256 of a code (100 random bits) is kept, and its last four characters to tell codes apart."""

wallet_events = Table(
    "wallet_events",
    metadata,
    Column("id", Int64, Identity(always=False), primary_key=True),
    Column("team_id", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("balance_nano", Int64, nullable=False),
    Column("threshold_nano", Int64),
    Column("at_us", Int64, nullable=False),
    CheckConstraint("kind IN ('low_balance', 'restored')", name="kind"),
    Index("ix_wallet_events_wallet", "team_id", "id"),
    sqlite_strict=True,
)
"""Each fall below a wallet's threshold and each return above it, once: whoever notifies people reads on from its last id."""
