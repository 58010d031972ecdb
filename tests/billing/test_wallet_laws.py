"""The laws of wallets: whatever comes in which order, twice, in any batches, at once, the figures are the same to the nano."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.corrections import reverse
from billing.database import reading
from billing.ledger import record
from billing.records import UsageRecord
from billing.teams import create_team
from billing.times import DAY_US, LATEST_US, QUARTER_US, now_us, quarter_of, time_us_of
from billing.usage import Usage
from billing.wallet_credits import adjust, reverse_entry, top_up
from billing.wallet_expiry import expire_credits, expired_wallets, unspent
from billing.wallets import Entry, check_wallet, get_wallet, list_entries
from tests.billing.helpers import NOON_US, rated_record, request_id

PLANS = 6


@pytest.mark.parametrize("seed", range(2))
async def test_any_order_duplicate_and_batching_leaves_the_same_wallet(database: AsyncEngine, seed: int) -> None:
    chance = random.Random(seed)
    async with database.begin() as connection:
        teams = [
            (await create_team(connection, name=f"team {at}", settlement_currency="CNY")).id for at in range(PLANS)
        ]
    rows = [
        rated_record(
            Usage(input=chance.randrange(5_000), output=chance.randrange(500)),
            team=chance.choice(teams),
            id_=request_id(NOON_US + chance.randrange(6) * QUARTER_US // 2),
        )
        for _ in range(120)
    ]
    deals = [(team, f"{team}-{at}", str(chance.randrange(1, 99))) for team in teams for at in range(3)]

    async def recorder(mine: list[UsageRecord]) -> None:
        chance_here = random.Random(len(mine))
        while mine:
            size = chance_here.randrange(1, 25)
            batch, mine = mine[:size], mine[size:]
            async with database.begin() as connection:
                await record(connection, batch)

    async def cashier(mine: list[tuple[str, str, str]]) -> None:
        for team, external_id, amount in mine:
            async with database.begin() as connection:
                await top_up(
                    connection, team_id=team, external_id=external_id, amount=amount, currency="CNY",
                    method="card", actor="shop",
                )  # fmt: skip

    def shuffled(of: list) -> list:  # type: ignore[type-arg]
        return chance.sample(of, len(of))

    await asyncio.gather(
        *(recorder(shuffled(rows)[: 120 - cut] if cut else shuffled(rows)) for cut in (0, 40, 80)),
        *(cashier(shuffled(deals)) for _ in range(2)),
    )
    undone = rows[:10]
    async with database.begin() as connection:
        for row in undone:
            await reverse(connection, row.id, request_id(NOON_US + DAY_US), reason="law", actor="law")
    expected: Counter[str] = Counter()
    folded: Counter[tuple[str, int]] = Counter()
    for row in rows:
        assert row.rated.settled is not None
        expected[row.team_id] -= row.rated.settled.nano
        folded[row.team_id, quarter_of(time_us_of(row.id))] -= row.rated.settled.nano
    for row in undone:
        assert row.rated.settled is not None
        expected[row.team_id] += row.rated.settled.nano
        folded[row.team_id, quarter_of(NOON_US + DAY_US)] += row.rated.settled.nano
    for team, _, amount in deals:
        expected[team] += int(amount) * 1_000_000_000
    async with reading(database) as connection:
        for team in teams:
            check = await check_wallet(connection, team)
            assert check.agrees
            assert check.balance_nano == expected[team]
            for entry in await list_entries(connection, team, kind="usage", limit=100):
                assert entry.bucket_us is not None
                assert folded.pop((team, entry.bucket_us)) == entry.amount_nano
    assert not any(folded.values())


# ---- expiry ----


def entry(
    id_: int, kind: str, nano: int, quarter: int, expires: int | None = None, reverses: int | None = None
) -> Entry:
    """At `quarter` of an hour long ago; `expires` is a quarter, too."""
    at_us = NOON_US + quarter * QUARTER_US
    bucket_us = at_us if kind == "usage" else None
    expires_us = None if expires is None else NOON_US + expires * QUARTER_US
    return Entry(
        id_, "team_a", "CNY", kind, nano, None, at_us, bucket_us, 1, None, None, None, None, None, None, None,
        expires_us, reverses, None,
    )  # fmt: skip


def test_what_expires_first_is_used_first_and_debt_is_paid_by_the_next_credit() -> None:
    history = [
        entry(1, "usage", -30, 0),  # owed
        entry(2, "top_up", 100, 1, expires=10),  # 30 of it pay the debt
        entry(3, "top_up", 100, 1),  # never expires
        entry(4, "code", 50, 2, expires=5),
        entry(5, "usage", -20, 3),  # out of the code
        entry(6, "usage", -10, 6),  # out of the first top-up: the code is over
        entry(7, "adjustment", -5, 7),
    ]
    until = NOON_US + 4 * QUARTER_US
    assert unspent(history, until) == {}
    assert unspent(history, until + QUARTER_US) == {4: 30}
    assert unspent(history, until + 6 * QUARTER_US) == {4: 30, 2: 55}
    late = [*history, entry(8, "usage", -25, 4)]
    assert unspent(late, until + 6 * QUARTER_US) == {4: 5, 2: 55}
    undone = [*late, entry(9, "reversal", -50, 20, reverses=4)]
    assert unspent(undone, until + 6 * QUARTER_US) == {2: 10}


moves = st.lists(
    st.tuples(
        st.sampled_from(["top_up", "usage", "adjustment"]), st.integers(1, 60), st.integers(0, 12), st.integers(1, 15)
    ),
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(moves, st.integers(0, 30), st.randoms())
def test_expiry_conserves_and_does_not_depend_on_the_order_of_entries(
    drawn: list[tuple[str, int, int, int]], now: int, chance: random.Random
) -> None:
    history = [
        entry(
            id_,
            kind,
            nano if kind == "top_up" or (kind == "adjustment" and lasts % 2) else -nano,
            quarter,
            expires=quarter + lasts if kind == "top_up" and lasts < 13 else None,
        )
        for id_, (kind, nano, quarter, lasts) in enumerate(drawn, 1)
    ]
    at_us = NOON_US + now * QUARTER_US
    found = unspent(history, at_us)
    assert unspent(chance.sample(history, len(history)), at_us) == found
    by_id = {each.id: each for each in history}
    for credit_id, nano in found.items():
        credit = by_id[credit_id]
        assert 0 <= nano <= credit.amount_nano
        assert credit.expires_at_us is not None
        assert credit.expires_at_us <= at_us
    # Unit by unit, the plain way: each unit used takes one of the credit that expires first.
    assert {each: nano for each, nano in found.items() if nano} == unit_by_unit(history, at_us)


def unit_by_unit(history: list[Entry], at_us: int) -> dict[int, int]:
    """An oracle that shares nothing with the code: units of credit with an end, taken one by one."""
    left: Counter[int] = Counter()
    owed = 0
    ends = {each.id: each.expires_at_us or LATEST_US for each in history}
    for quarter_us in sorted({quarter_of(each.at_us) for each in history}):
        now = [each for each in history if quarter_of(each.at_us) == quarter_us]
        for each in sorted((each for each in now if each.amount_nano > 0), key=lambda each: each.id):
            for _ in range(each.amount_nano):
                if owed:
                    owed -= 1
                else:
                    left[each.id] += 1
        for each in (each for each in now if each.amount_nano < 0):
            for _ in range(-each.amount_nano):
                usable = [id_ for id_ in left if left[id_] and ends[id_] > quarter_us]
                if usable:
                    left[min(usable, key=lambda id_: (ends[id_], id_))] -= 1
                else:
                    owed += 1
    return {id_: nano for id_, nano in left.items() if nano and ends[id_] <= at_us}


async def test_expired_credit_is_booked_once_and_put_right_by_late_usage_and_reversal(database: AsyncEngine) -> None:
    async with database.begin() as connection:
        team = (await create_team(connection, name="acme", settlement_currency="CNY")).id
        credit = await top_up(
            connection, team_id=team, external_id="w", amount="1", currency="CNY", method="card", actor="shop",
            expires_at_us=now_us() + DAY_US,
        )  # fmt: skip
        await adjust(connection, team_id=team, amount="2", reason="goodwill", actor="ann")
        early = request_id(now_us())
        await record(connection, [rated_record(Usage(output=1_000_000), team=team, id_=early)])  # 0.42
    end_us = (credit.expires_at_us or 0) + 1

    async def sweep() -> list[Entry]:
        async with database.begin() as connection:
            return await expire_credits(connection, team, "CNY", end_us)

    async with reading(database) as connection:
        assert await expired_wallets(connection, end_us - DAY_US, end_us) == [(team, "CNY")]
        assert await expired_wallets(connection, end_us, end_us + DAY_US) == []
    swept = await asyncio.gather(*(sweep() for _ in range(4)))
    (booked,) = [each for made in swept for each in made]
    assert (booked.kind, booked.amount_nano, booked.credit_id) == ("expiry", -580_000_000, credit.id)
    async with database.begin() as connection:
        late = rated_record(Usage(output=500_000), team=team, id_=request_id(now_us()))  # 0.21, recorded late
        await record(connection, [late])
    (given_back,) = await sweep()
    assert (given_back.amount_nano, given_back.credit_id) == (210_000_000, credit.id)
    assert await sweep() == []
    async with database.begin() as connection:
        await reverse_entry(connection, team_id=team, entry_id=credit.id, reason="charged back", actor="bank")
    await sweep()
    async with reading(database) as connection:
        wallet, check = await get_wallet(connection, team), await check_wallet(connection, team)
    assert check.agrees
    assert wallet.balance_nano == 2_000_000_000 - 420_000_000 - 210_000_000
