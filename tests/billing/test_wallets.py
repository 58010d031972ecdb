"""Wallets: money in, money used, nothing twice; the balance is the plain sum of the entries, on both databases."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.corrections import reverse
from billing.database import reading
from billing.errors import AmountOverflow, BillingError, Conflict, InvalidWallet, NotFound
from billing.ledger import record
from billing.redemption import create_codes, digest_of, end_batch, get_batch, list_codes, redeem
from billing.teams import TeamRow, create_team
from billing.times import DAY_US, QUARTER_US, now_us
from billing.usage import Usage
from billing.wallet_credits import adjust, reverse_entry, top_up
from billing.wallets import (
    Entry,
    check_wallet,
    get_wallet,
    list_entries,
    list_events,
    set_low_balance,
)
from tests.billing.helpers import NOON_US, rated_record, request_id

YUAN = 1_000_000_000


async def new_team(database: AsyncEngine, currency: str = "CNY", name: str = "search") -> TeamRow:
    async with database.begin() as connection:
        return await create_team(connection, name=name, settlement_currency=currency, billing="prepaid")


async def pay(
    database: AsyncEngine,
    team: str,
    external_id: str = "wire-1",
    amount: str = "100",
    currency: str = "CNY",
    method: str = "bank_transfer",
    **more: str | int | None,
) -> Entry:
    async with database.begin() as connection:
        return await top_up(
            connection,
            team_id=team,
            external_id=external_id,
            amount=amount,
            currency=currency,
            method=method,
            actor="finance",
            **more,  # type: ignore[arg-type]
        )


async def balance(database: AsyncEngine, team: str) -> int:
    """The running balance, once it has been found to be the sum of the entries and of the rows."""
    async with reading(database) as connection:
        check = await check_wallet(connection, team)
        assert check.agrees, check
        assert (await get_wallet(connection, team)).balance_nano == check.balance_nano
        return check.balance_nano


async def test_rule_09_a_top_up_counts_once_and_another_body_under_its_id_is_a_conflict(database: AsyncEngine) -> None:
    team = await new_team(database)
    first = await pay(database, team.id)
    assert (first.amount_nano, first.balance_nano, first.kind) == (100 * YUAN, 100 * YUAN, "top_up")
    again = await asyncio.gather(*(pay(database, team.id) for _ in range(5)))
    assert set(again) == {first}
    other = await new_team(database, name="other")
    for changed in (
        {"amount": "100.01"},
        {"method": "card"},
        {"currency": "USD", "rate": "7.3"},
        {"expires_at_us": now_us() + DAY_US},
        {"reason": "paid twice?"},
    ):
        with pytest.raises(Conflict, match="external_id"):
            await pay(database, team.id, **changed)
    with pytest.raises(Conflict, match="another team"):
        await pay(database, other.id)
    at_once = await asyncio.gather(
        *(pay(database, each.id, "wire-2", "0.000000001") for each in (team, other)), return_exceptions=True
    )
    assert {type(answer) for answer in at_once} == {Entry, Conflict}
    assert await balance(database, team.id) + await balance(database, other.id) == 100 * YUAN + 1


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"amount": "0"}, "amount"),
        ({"amount": "-1"}, "amount"),
        ({"amount": "1e30"}, "amount"),
        ({"amount": "0.0000000001"}, "amount"),
        ({"currency": "USD"}, "currency"),
        ({"currency": "RMB"}, "currency"),
        ({"rate": "7"}, "rate"),
        ({"currency": "USD", "rate": "0"}, "rate"),
        ({"currency": "USD", "rate": "8000000", "amount": "9000000000"}, "amount"),
        ({"external_id": " "}, "external_id"),
        ({"method": ""}, "method"),
        ({"expires_at_us": NOON_US - 400 * DAY_US}, "expires_at"),
    ],
)
async def test_a_top_up_that_cannot_be_names_its_field(
    sqlite_database: AsyncEngine, changed: dict[str, str], field: str
) -> None:
    team = await new_team(sqlite_database)
    with pytest.raises(BillingError) as caught:
        await pay(sqlite_database, team.id, **changed)
    assert caught.value.field == field
    assert await balance(sqlite_database, team.id) == 0


async def test_usage_debits_its_wallet_once_and_rows_equal_rollup_equal_wallet(database: AsyncEngine) -> None:
    team = (await new_team(database)).id
    await pay(database, team)
    rows = [
        rated_record(Usage(input=number, output=7), team=team, id_=request_id(NOON_US + number * QUARTER_US // 3))
        for number in range(1, 12)
    ]
    unpriced = rated_record(Usage(audio_input=5), team=team)
    free = rated_record(Usage(), team=team)
    async with database.begin() as connection:
        await record(connection, [*rows[:6], unpriced, free])
    await asyncio.gather(*(_record(database, rows[at:]) for at in (0, 3, 5)))
    settled = sum(row.rated.settled.nano for row in rows if row.rated.settled is not None)
    assert settled == sum(280 * number + 7 * 420 for number in range(1, 12))
    assert await balance(database, team) == 100 * YUAN - settled
    async with reading(database) as connection:
        usage = await list_entries(connection, team, kind="usage", limit=50)
        assert sum(entry.requests for entry in usage) == 11
        assert {entry.bucket_us for entry in usage} == {NOON_US + at * QUARTER_US for at in range(4)}
    (first,) = [entry for entry in usage if entry.bucket_us == NOON_US]
    assert (first.amount_nano, first.requests, first.balance_nano) == (-(280 * (1 + 2) + 2 * 7 * 420), 2, None)
    async with database.begin() as connection:
        await reverse(connection, rows[0].id, request_id(NOON_US + DAY_US), reason="test", actor="somebody")
    assert await balance(database, team) == 100 * YUAN - settled + 280 + 7 * 420


async def _record(database: AsyncEngine, rows: list) -> None:  # type: ignore[type-arg]
    for row in rows:
        async with database.begin() as connection:
            await record(connection, [row])


async def test_rule_09_fifty_parallel_claims_of_one_code_give_one_success(database: AsyncEngine) -> None:
    team = (await new_team(database)).id
    async with database.begin() as connection:
        batch, (code, other) = await create_codes(
            connection, count=2, amount="25", currency="CNY", actor="sales", note="fair"
        )

    async def claim(written: str = code) -> Entry:
        async with database.begin() as connection:
            return await redeem(connection, team_id=team, code=written, actor="sales")

    answers = await asyncio.gather(*(claim() for _ in range(50)), return_exceptions=True)
    entries = [answer for answer in answers if isinstance(answer, Entry)]
    refusals = [answer for answer in answers if isinstance(answer, Conflict)]
    assert (len(entries), len(refusals)) == (1, 49)
    assert all("redeemed already" in str(refusal) for refusal in refusals)
    assert await balance(database, team) == 25 * YUAN
    async with database.begin() as connection:
        codes = {each.hint: each for each in await list_codes(connection, batch.id, limit=10)}
        assert code[-4:] not in "".join(each.digest for each in codes.values())
        assert (codes[code[-4:]].team_id, codes[code[-4:]].entry_id) == (team, entries[0].id)
        assert codes[other[-4:]].team_id is None
        with pytest.raises(InvalidWallet, match="no such code"):
            await redeem(connection, team_id=team, code="MG-00000-00000-00000-00000", actor="sales")
        dollars = await create_team(connection, name="us", settlement_currency="USD")
        with pytest.raises(InvalidWallet, match="worth CNY"):
            await redeem(connection, team_id=dollars.id, code=other, actor="sales")
        ended = await end_batch(connection, batch.id)
        assert (ended.redeemed, await get_batch(connection, batch.id)) == (1, ended)
    with pytest.raises(Conflict, match="batch was ended"):
        await claim(other)
    statement = text("UPDATE redemption_codes SET team_id = NULL, redeemed_at_us = NULL WHERE entry_id IS NOT NULL")
    async with database.connect() as connection:
        with pytest.raises(DBAPIError, match="append-only"):
            await connection.execute(statement)


def test_a_code_is_read_as_people_write_it() -> None:
    assert digest_of("MG-A0B1C-DEFGH-JKMNP-QRSTV") == digest_of(" mg a0b1c defgh jkmnp qrstv")
    assert digest_of("MG-A0B1C-DEFGH-JKMNP-QRSTV") == digest_of("AOBIC-DEFGH-JKMNP-QRSTV")
    assert digest_of("MG-A0B1C-DEFGH-JKMNP-QRSTV") != digest_of("MG-A0B1C-DEFGH-JKMNP-QRSTW")


async def test_a_reversal_takes_back_what_came_in_at_the_rate_it_came_in_at_once(database: AsyncEngine) -> None:
    team = (await new_team(database)).id
    entry = await pay(database, team, "usd", "10.01", "USD", rate="7.123456789012")
    assert entry.amount_nano == 71_305_802_458  # 10.01 x 7.123456789012, half-even
    async with database.begin() as connection:
        back = await reverse_entry(connection, team_id=team, entry_id=entry.id, reason="charged back", actor="bank")
    assert (back.amount_nano, back.paid_nano, back.rate_pico) == (-entry.amount_nano, -10_010_000_000, entry.rate_pico)
    assert (back.reverses_id, back.balance_nano) == (entry.id, 0)
    async with database.begin() as connection:
        with pytest.raises(Conflict, match=f"by entry {back.id}"):
            await reverse_entry(connection, team_id=team, entry_id=entry.id, reason="again", actor="bank")
        with pytest.raises(InvalidWallet, match="kind reversal"):
            await reverse_entry(connection, team_id=team, entry_id=back.id, reason="again", actor="bank")
        with pytest.raises(NotFound):
            await reverse_entry(connection, team_id="team_other", entry_id=entry.id, reason="mine", actor="bank")
        await record(connection, [rated_record(Usage(output=1), team=team)])
        (usage,) = await list_entries(connection, team, kind="usage", limit=5)
        with pytest.raises(InvalidWallet, match="correct the usage row"):
            await reverse_entry(connection, team_id=team, entry_id=usage.id, reason="wrong", actor="bank")
    assert await balance(database, team) == -420


async def test_adjustments_have_a_reason_and_an_actor(database: AsyncEngine) -> None:
    team = (await new_team(database)).id
    async with database.begin() as connection:
        given = await adjust(connection, team_id=team, amount="5", reason="goodwill", actor="ann", external_id="t-1")
        same = await adjust(connection, team_id=team, amount="5", reason="goodwill", actor="ann", external_id="t-1")
        taken = await adjust(connection, team_id=team, amount="-7.5", reason="late fee", actor="bob", currency="CNY")
        assert same == given
        assert (given.reason, given.actor, taken.balance_nano) == ("goodwill", "ann", -2_500_000_000)
        for changed, field in (
            ({"amount": "0"}, "amount"),
            ({"reason": ""}, "reason"),
            ({"actor": ""}, "actor"),
            ({"currency": "USD"}, "currency"),
            ({"amount": "-1", "expires_at_us": now_us() + DAY_US}, "expires_at"),
            ({"external_id": "t-1", "amount": "6"}, "external_id"),
        ):
            body = {"team_id": team, "amount": "5", "reason": "goodwill", "actor": "ann", **changed}
            with pytest.raises(BillingError) as caught:
                await adjust(connection, **body)  # type: ignore[arg-type]
            assert caught.value.field == field
    assert await balance(database, team) == -2_500_000_000


async def test_entries_and_events_refuse_to_be_changed_or_removed(database: AsyncEngine) -> None:
    team = (await new_team(database)).id
    await pay(database, team)
    async with database.begin() as connection:
        await set_low_balance(connection, team, "1000")
    for statement in (
        "UPDATE wallet_entries SET amount_nano = 1",
        "DELETE FROM wallet_entries",
        "UPDATE wallet_events SET kind = 'restored'",
    ):
        async with database.connect() as connection:
            with pytest.raises(DBAPIError, match="append-only"):
                await connection.execute(text(statement))


async def test_a_fall_below_the_threshold_is_one_event_and_so_is_the_return(database: AsyncEngine) -> None:
    team = (await new_team(database)).id
    await pay(database, team, amount="1")
    async with database.begin() as connection:
        assert (await set_low_balance(connection, team, "0.5")).is_low is False
        first = await record(connection, [rated_record(Usage(output=1_000_000), team=team)])
        second = await record(connection, [rated_record(Usage(output=1_000_000), team=team)])
        third = await record(connection, [rated_record(Usage(output=1_000_000), team=team)])
    assert (first.events, third.events) == ((), ())
    (event,) = second.events
    assert (event.kind, event.balance_nano, event.threshold_nano) == ("low_balance", 160_000_000, 500_000_000)
    await pay(database, team, "wire-2", "10")
    async with database.begin() as connection:
        events = await list_events(connection, team, limit=10)
        assert [each.kind for each in events] == ["low_balance", "restored"]
        assert events[0] == event
        assert await list_events(connection, team, after=events[-1].id, limit=10) == []
        assert (await set_low_balance(connection, team, "1000")).is_low is True
        assert (await set_low_balance(connection, team, None)).is_low is False


async def test_a_balance_beyond_64_bits_is_refused_whole(database: AsyncEngine) -> None:
    team = (await new_team(database)).id
    most = "9223372036.854775807"
    await pay(database, team, amount=most)
    with pytest.raises(AmountOverflow):
        await pay(database, team, "wire-2", "0.000000001")
    assert await balance(database, team) == 2**63 - 1
