"""Wallets, redemption codes, sell prices, margins. Usage that was recorded before stands in the wallets from the start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from billing.columns import Flag, Int64

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

MONEY_KEY = (
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
MONEY_SUMS = ("lines", "quantity", "list_nano", "settled_nano", "policy_nano", "reference_nano")


def upgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    _sell()
    _margins()
    _rollup_key(postgresql)
    _wallets()
    _codes()
    _events()
    _debit_the_past()
    _guard(postgresql)


def _sell() -> None:
    op.create_table(
        "sell_rows",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("price_list", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("sell_list", sa.Text()),
        sa.Column("multiplier_micro", Int64),
        sa.Column("effective_from_us", Int64, nullable=False),
        sa.Column("recorded_at_us", Int64, nullable=False),
        sa.CheckConstraint("(sell_list IS NULL) <> (multiplier_micro IS NULL)", name=op.f("ck_sell_rows_one")),
        sa.CheckConstraint("multiplier_micro >= 0", name=op.f("ck_sell_rows_multiplier")),
        sa.ForeignKeyConstraint(["team_id"], ["teams.id"], name=op.f("fk_sell_rows_team_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sell_rows")),
        sqlite_strict=True,
    )


def _margins() -> None:
    zero = sa.text("0")
    op.add_column("usage", sa.Column("pin_sell", Int64, server_default=zero, nullable=False))
    op.add_column("usage", sa.Column("sell_id", Int64))
    op.add_column("usage", sa.Column("margin_nano", Int64))
    op.add_column("rollup_traffic", sa.Column("margin_nano", Int64, server_default=zero, nullable=False))
    op.add_column("rollup_traffic", sa.Column("negative_margin", Int64, server_default=zero, nullable=False))


def _rollup_key(postgresql: bool) -> None:
    """`sell_id` joins the key of `rollup_money`: a cell names everything that it was computed from."""
    if postgresql:
        op.add_column("rollup_money", sa.Column("sell_id", Int64, server_default=sa.text("0"), nullable=False))
        op.alter_column("rollup_money", "sell_id", server_default=None)
        op.drop_constraint("pk_rollup_money", "rollup_money")
        op.create_primary_key("pk_rollup_money", "rollup_money", list(MONEY_KEY))
        return
    op.rename_table("rollup_money", "rollup_money_without_sell")
    whole = ("bucket_us", "price_row_id", "terms_id", "sell_id")
    op.create_table(
        "rollup_money",
        *(
            sa.Column(name, Int64 if name in whole else sa.Text(), autoincrement=False, nullable=False)
            for name in MONEY_KEY
        ),
        *(sa.Column(name, Int64, nullable=name not in ("lines", "quantity")) for name in MONEY_SUMS),
        sa.PrimaryKeyConstraint(*MONEY_KEY, name=op.f("pk_rollup_money")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    columns = ", ".join((*MONEY_KEY, *MONEY_SUMS))
    kept = ", ".join("0" if name == "sell_id" else name for name in (*MONEY_KEY, *MONEY_SUMS))
    op.execute(f"INSERT INTO rollup_money ({columns}) SELECT {kept} FROM rollup_money_without_sell")
    op.drop_table("rollup_money_without_sell")


def _wallets() -> None:
    op.create_table(
        "wallets",
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("balance_nano", Int64, nullable=False),
        sa.Column("low_balance_nano", Int64),
        sa.Column("is_low", Flag(), nullable=False),
        sa.PrimaryKeyConstraint("team_id", "currency", name=op.f("pk_wallets")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "wallet_entries",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("amount_nano", Int64, nullable=False),
        sa.Column("balance_nano", Int64),
        sa.Column("at_us", Int64, nullable=False),
        sa.Column("bucket_us", Int64),
        sa.Column("requests", Int64, nullable=False),
        sa.Column("external_id", sa.Text()),
        sa.Column("method", sa.Text()),
        sa.Column("paid_currency", sa.Text()),
        sa.Column("paid_nano", Int64),
        sa.Column("rate_pico", Int64),
        sa.Column("reason", sa.Text()),
        sa.Column("actor", sa.Text()),
        sa.Column("expires_at_us", Int64),
        sa.Column("reverses_id", Int64),
        sa.Column("credit_id", Int64),
        sa.CheckConstraint(
            "kind IN ('top_up', 'code', 'adjustment', 'usage', 'reversal', 'expiry')",
            name=op.f("ck_wallet_entries_kind"),
        ),
        sa.CheckConstraint("(kind = 'usage') = (bucket_us IS NOT NULL)", name=op.f("ck_wallet_entries_bucket")),
        sa.CheckConstraint("(kind = 'reversal') = (reverses_id IS NOT NULL)", name=op.f("ck_wallet_entries_reverses")),
        sa.CheckConstraint("(kind = 'expiry') = (credit_id IS NOT NULL)", name=op.f("ck_wallet_entries_credit")),
        sa.ForeignKeyConstraint(["reverses_id"], ["wallet_entries.id"], name=op.f("fk_wallet_entries_reverses_id")),
        sa.ForeignKeyConstraint(["credit_id"], ["wallet_entries.id"], name=op.f("fk_wallet_entries_credit_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_wallet_entries")),
        sqlite_strict=True,
    )
    index = op.create_index
    index("uq_wallet_entries_bucket", "wallet_entries", ["team_id", "currency", "bucket_us"], unique=True)
    index("uq_wallet_entries_external", "wallet_entries", ["external_id"], unique=True)
    index("uq_wallet_entries_reverses", "wallet_entries", ["reverses_id"], unique=True)
    index("ix_wallet_entries_wallet", "wallet_entries", ["team_id", "currency", "id"], unique=False)
    index("ix_wallet_entries_expires", "wallet_entries", ["expires_at_us"], unique=False)


def _codes() -> None:
    op.create_table(
        "redemption_batches",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("amount_nano", Int64, nullable=False),
        sa.Column("codes", Int64, nullable=False),
        sa.Column("redeem_until_us", Int64),
        sa.Column("credit_expires_at_us", Int64),
        sa.Column("note", sa.Text()),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("created_at_us", Int64, nullable=False),
        sa.Column("ended_at_us", Int64),
        sa.CheckConstraint("amount_nano > 0", name=op.f("ck_redemption_batches_amount")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_redemption_batches")),
        sqlite_strict=True,
    )
    op.create_table(
        "redemption_codes",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("batch_id", Int64, nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("team_id", sa.Text()),
        sa.Column("redeemed_at_us", Int64),
        sa.Column("entry_id", Int64),
        sa.CheckConstraint("(team_id IS NULL) = (redeemed_at_us IS NULL)", name=op.f("ck_redemption_codes_redeemed")),
        sa.ForeignKeyConstraint(["batch_id"], ["redemption_batches.id"], name=op.f("fk_redemption_codes_batch_id")),
        sa.ForeignKeyConstraint(["entry_id"], ["wallet_entries.id"], name=op.f("fk_redemption_codes_entry_id")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_redemption_codes")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_redemption_codes_batch", "redemption_codes", ["batch_id", "digest"], unique=False)


def _events() -> None:
    op.create_table(
        "wallet_events",
        sa.Column("id", Int64, sa.Identity(always=False), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("balance_nano", Int64, nullable=False),
        sa.Column("threshold_nano", Int64),
        sa.Column("at_us", Int64, nullable=False),
        sa.CheckConstraint("kind IN ('low_balance', 'restored')", name=op.f("ck_wallet_events_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_wallet_events")),
        sqlite_strict=True,
    )
    op.create_index("ix_wallet_events_wallet", "wallet_events", ["team_id", "id"], unique=False)


def _debit_the_past() -> None:
    """What was settled before there were wallets, folded per quarter-hour as it would have been."""
    settled = (
        "SELECT team_id, settlement_currency, bucket_us, CAST(-SUM(settled_nano) AS BIGINT) AS debit, "
        "CAST(SUM(requests) AS BIGINT) AS requests FROM rollup_traffic "
        "GROUP BY team_id, settlement_currency, bucket_us HAVING SUM(settled_nano) <> 0"
    )
    op.execute(
        "INSERT INTO wallet_entries (team_id, currency, kind, amount_nano, at_us, bucket_us, requests) "
        f"SELECT team_id, settlement_currency, 'usage', debit, bucket_us, bucket_us, requests FROM ({settled}) AS folded"
    )
    no = "FALSE" if op.get_bind().dialect.name == "postgresql" else "0"
    op.execute(
        "INSERT INTO wallets (team_id, currency, balance_nano, is_low) "
        f"SELECT team_id, currency, CAST(SUM(amount_nano) AS BIGINT), {no} FROM wallet_entries GROUP BY team_id, currency"
    )


def _guard(postgresql: bool) -> None:
    """Entries, events and sell rows stay as they were written; folded usage grows; a code is redeemed once."""
    rules = (
        ("sell_rows", "UPDATE", ""),
        ("sell_rows", "DELETE", ""),
        ("wallet_entries", "UPDATE", "OLD.kind <> 'usage' OR NEW.kind <> 'usage'"),
        ("wallet_entries", "DELETE", ""),
        ("wallet_events", "UPDATE", ""),
        ("redemption_codes", "UPDATE", "OLD.entry_id IS NOT NULL"),
        ("redemption_codes", "DELETE", "OLD.team_id IS NOT NULL"),
    )
    for table, event, when in rules:
        condition = f"WHEN ({when}) " if when else ""
        if postgresql:
            op.execute(
                f"CREATE TRIGGER append_only_{event.lower()} BEFORE {event} ON {table} FOR EACH ROW {condition}"
                "EXECUTE FUNCTION metergate_refuse()"
            )
        else:
            op.execute(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} {condition}"
                f"BEGIN SELECT RAISE(ABORT, 'rows of {table} are append-only'); END"
            )
