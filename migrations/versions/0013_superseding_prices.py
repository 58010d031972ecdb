"""A price that was published wrong can be superseded: a later version of the book may have its key and moment again."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

KEY = (
    "price_list",
    "model",
    "token_class",
    "service_tier",
    "processing",
    "min_input_tokens",
    "effective_from_us",
    "book_version",
)


def upgrade() -> None:
    op.drop_index("uq_price_rows_key", table_name="price_rows")
    op.create_index("uq_price_rows_key", "price_rows", list(KEY), unique=True)
