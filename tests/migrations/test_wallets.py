"""A database from before there were wallets: what its teams used stands in their wallets after the upgrade."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from billing.database import open_database
from billing.teams import create_team
from billing.times import QUARTER_US
from billing.wallets import check_wallet, list_entries
from gateway.database import upgrade
from tests.billing.helpers import NOON_US


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"empty_{request.param}_url")
    return url


async def test_usage_from_before_is_debited_by_the_upgrade_and_rollups_keep_their_figures(empty_url: str) -> None:
    await upgrade(empty_url, "0004")
    engine = open_database(empty_url)
    try:
        async with engine.begin() as connection:
            names = [
                row.name
                for row in await connection.execute(
                    text("SELECT name FROM pragma_table_info('rollup_traffic')")
                    if connection.dialect.name == "sqlite"
                    else text(
                        "SELECT column_name AS name FROM information_schema.columns WHERE table_name = 'rollup_traffic'"
                    )
                )
            ]
            team = (await create_team(connection, name="old", settlement_currency="CNY")).id
            texts = {"team_id": team, "settlement_currency": "CNY"}
            for at, (bucket, key, nano) in enumerate(((0, "a", 5), (0, "b", 7), (1, "a", 11), (2, "a", 0))):
                row = dict.fromkeys(names, 0) | dict.fromkeys(
                    ("model", "provider", "provider_model", "list_currency", "cost_currency"), "x"
                )
                row |= {**texts, "key_id": key, "bucket_us": NOON_US + bucket * QUARTER_US, "settled_nano": nano}
                row["requests"] = at + 1
                columns = ", ".join(row)
                values = ", ".join(f":{name}" for name in row)
                await connection.execute(text(f"INSERT INTO rollup_traffic ({columns}) VALUES ({values})"), row)
            await connection.execute(
                text(
                    "INSERT INTO rollup_money (team_id, bucket_us, model, provider, provider_model, token_class, price_row_id, "
                    "terms_id, rate_ids, list_currency, settlement_currency, lines, quantity, settled_nano) "
                    "VALUES (:team, 0, 'm', 'p', 'pm', 'output', 4, 2, '1,2', 'USD', 'CNY', 3, 9, 23)"
                ),
                {"team": team},
            )
        await upgrade(empty_url)
        async with engine.begin() as connection:
            check = await check_wallet(connection, team)
            entries = await list_entries(connection, team, limit=10)
            money = (await connection.execute(text("SELECT * FROM rollup_money"))).one()._mapping
    finally:
        await engine.dispose()
    assert check.agrees
    assert check.balance_nano == -23
    assert sorted((each.bucket_us, each.amount_nano, each.requests) for each in entries) == [
        (NOON_US, -12, 3),
        (NOON_US + QUARTER_US, -11, 3),
    ]
    assert (money["price_row_id"], money["terms_id"], money["sell_id"], money["rate_ids"]) == (4, 2, 0, "1,2")
    assert (money["lines"], money["quantity"], money["list_nano"], money["settled_nano"]) == (3, 9, None, 23)
