"""Statements and their cells outlive the table that is made anew for credit notes over parts, and so do their guards."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from billing.database import open_database
from gateway.database import upgrade

STATEMENT = (
    "INSERT INTO statements (id, team_id, kind, state, month, start_us, end_us, number, corrects_id, document, hash,"
    " created_at_us, issued_at_us) VALUES "
    "(7, 't', 'statement', 'issued', '2026-09', 1, 2, 1, NULL, '{}', 'h1', 3, 3), "
    "(9, 't', 'credit_note', 'issued', '2026-09', 1, 2, 2, 7, '{}', 'h2', 4, 4), "
    "(12, 't', 'statement', 'draft', '2026-09', 1, 2, NULL, NULL, '{}', NULL, 5, NULL)"
)
CELL = (
    "INSERT INTO statement_cells (statement_id, source_start_us, model, provider, provider_model, token_class,"
    " price_row_id, terms_id, sell_id, rate_ids, list_currency, settlement_currency, lines, quantity)"
    " VALUES (7, 1, 'm', 'p', 'm', 'output', 1, 0, 0, '', 'USD', 'USD', 1, 5)"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"empty_{request.param}_url")
    return url


async def test_what_was_issued_before_is_there_and_still_never_changes(empty_url: str) -> None:
    await upgrade(empty_url, "0010")
    engine = open_database(empty_url)
    async with engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO teams (id, name, settlement_currency, billing, lost_charge, created_at_us)"
                " VALUES ('t', 't', 'USD', 'postpaid', 'input', 1)"
            )
        )
        await connection.execute(text(STATEMENT))
        await connection.execute(text(CELL))
        before = (await connection.execute(text("SELECT * FROM statements ORDER BY id"))).mappings().all()
    await engine.dispose()
    assert (await upgrade(empty_url)).up_to_date
    engine = open_database(empty_url)
    async with engine.connect() as connection:
        after = (await connection.execute(text("SELECT * FROM statements ORDER BY id"))).mappings().all()
        assert [dict(row) for row in after] == [{**row, "credit_nano": None} for row in before]
        assert await connection.scalar(text("SELECT quantity FROM statement_cells")) == 5
    part = STATEMENT.partition("VALUES")[0].replace("issued_at_us)", "issued_at_us, credit_nano)") + "VALUES "
    for values, wrong in (
        ("(13, 't', 'partial_credit_note', 'issued', '2026-09', 1, 2, 3, 7, '{}', 'h3', 5, 5, 4)", None),
        ("(14, 't', 'partial_credit_note', 'issued', '2026-09', 1, 2, 4, 7, '{}', 'h4', 5, 5, 4)", None),
        ("(15, 't', 'partial_credit_note', 'issued', '2026-09', 1, 2, 5, 7, '{}', 'h5', 5, 5, 0)", "credit_above_zero"),
        ("(16, 't', 'credit_note', 'issued', '2026-09', 1, 2, 6, 7, '{}', 'h6', 5, 5, NULL)", "(?i)unique"),
        ("(17, 't', 'partial_credit_note', 'issued', '2026-09', 1, 2, 7, 8, '{}', 'h7', 5, 5, 1)", "(?i)foreign key"),
    ):
        async with engine.connect() as connection:
            if wrong is None:
                await connection.execute(text(part + values))
                await connection.commit()
            else:
                with pytest.raises(DBAPIError, match=wrong):
                    await connection.execute(text(part + values))
    for change in ("UPDATE statements SET hash = 'x' WHERE id = 7", "DELETE FROM statements WHERE id = 9"):
        async with engine.connect() as connection:
            with pytest.raises(DBAPIError, match="never changes"):
                await connection.execute(text(change))
    async with engine.begin() as connection:
        await connection.execute(text("DELETE FROM statements WHERE id = 12"))
    await engine.dispose()
