"""The outbox: what happened once, and what is still to be sent of it."""

from __future__ import annotations

import sqlalchemy as sa

from billing.columns import Int64
from billing.tables import metadata

webhook_events = sa.Table(
    "webhook_events",
    metadata,
    # What happened, by name: it happens once, whoever tells of it.
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    # The JSON body that is sent, the same at every try.
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created_at_us", Int64, nullable=False),
    # When the key may be forgotten; NULL: never.
    sa.Column("keep_until_us", Int64),
    # When it is next tried, or whoever tries it now is given up; NULL: there is nothing more to send.
    sa.Column("next_at_us", Int64),
    sa.Column("attempts", Int64, nullable=False),
    sa.Column("delivered_at_us", Int64),
    sa.Column("error", sa.Text),
    sa.Index("ix_webhook_events_next", "next_at_us"),
    sa.Index("ix_webhook_events_keep", "keep_until_us"),
    sqlite_strict=True,
)
