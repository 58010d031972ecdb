"""Bad values: each is a 422 (a clash a 409) in the one error shape, and its `param` names the field to mend."""

from __future__ import annotations

import pytest

from tests.gateway.admin.conftest import Operator

PRICE = {
    "provider": "deepseek",
    "model": "deepseek-chat",
    "token_class": "output",
    "currency": "USD",
    "amount_per_mtok": "0.42",
    "effective_from": "2026-01-01T00:00:00Z",
}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"name": "taken", "settlement_currency": "CNY"}, 409, "name"),
        ({"name": "x", "settlement_currency": "XXX"}, 422, "settlement_currency"),
        ({"name": "x", "settlement_currency": "cny"}, 422, "settlement_currency"),
        ({"name": "x"}, 422, "settlement_currency"),
        ({"name": "x", "settlement_currency": "CNY", "billing": "later"}, 422, "billing"),
        ({"name": "x", "settlement_currency": "CNY", "credit_limit": "1e3"}, 422, "credit_limit"),
        ({"name": "x", "settlement_currency": "CNY", "credit_limit": 5}, 422, "credit_limit"),
        ({"name": "x", "settlement_currency": "CNY", "credit_limit": "0.0000000001"}, 422, "credit_limit"),
    ],
)
async def test_a_bad_team_is_refused_by_the_field(
    operator: Operator, body: dict[str, object], status: int, param: str
) -> None:
    await operator.team("taken")
    assert (await operator.refused("/teams", body, status=status))[0] == param


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"amount_per_mtok": "0.4200001"}, "amount_per_mtok", "has more than 6 decimals"),
        ({"amount_per_mtok": 0.42}, "amount_per_mtok", "Expected `str | null`, got `float`"),
        ({"amount_per_mtok": "-1"}, "amount_per_mtok", "outside"),
        ({"amount_per_mtok": "NaN"}, "amount_per_mtok", "write a decimal number in plain digits, such as 12.50"),
        ({"amount_per_mtok": None}, "amount_per_mtok", "give it, or amount, and not both"),
        ({"amount": "0.42"}, "amount_per_mtok", "give it, or amount, and not both"),
        ({"currency": "EURO"}, "currency", "currency: write an ISO 4217 code, three capitals such as USD"),
        ({"currency": "EUX"}, "currency", "no ISO 4217 currency code"),
        ({"token_class": "thinking"}, "token_class", "'thinking' is none of input, cache_read, "),
        ({"unit": "hour"}, "unit", "output is priced per mtok, not per 'hour'"),
        ({"processing": "overnight"}, "processing", "processing: 'overnight' is none of batch, standard"),
        ({"min_input_tokens": -1}, "min_input_tokens", ">= 0"),
        ({"effective_from": "yesterday"}, "effective_from", "no RFC 3339 time"),
        ({"provider": ""}, "provider", "provider: must not be empty"),
    ],
)
async def test_a_bad_price_is_a_422_that_names_the_field(
    operator: Operator, change: dict[str, object], param: str, message: str
) -> None:
    named, said = await operator.refused("/prices", {**PRICE, **change})
    assert named == param, said
    assert message in said


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"scope": "planet"}, "scope"),
        ({"scope": "all"}, "scope_id"),
        ({"scope_id": None}, "scope_id"),
        ({"scope_id": "team_nobody"}, "scope_id"),
        ({"scope": "key", "scope_id": "key_nobody"}, "scope_id"),
        ({"currency": "USD"}, "currency"),
        ({"amount": "-1"}, "amount"),
        ({"amount": 100}, "amount"),
        ({"amount": "99999999999999999999"}, "amount"),
        ({"period": "year"}, "period"),
        ({"timezone": "Asia/Nowhere"}, "timezone"),
        ({"hard": "perhaps"}, "hard"),
    ],
)
async def test_a_bad_budget_is_a_422_that_names_the_field(
    operator: Operator, change: dict[str, object], param: str
) -> None:
    body = {
        "scope": "team",
        "scope_id": await operator.team(),
        "amount": "100.00",
        "currency": "CNY",
        "period": "month",
    }
    named, said = await operator.refused("/budgets", {**body, **change})
    assert named == param, said


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"team_id": "team_nobody"}, "team_id", "team_id: there is no team 'team_nobody'"),
        ({"allowed_ips": ["10.0.0.1/8"]}, "allowed_ips", "allowed_ips: 10.0.0.1/8 has host bits set"),
        ({"expires_at": "2026-01-01"}, "expires_at", "expires_at: '2026-01-01' has no offset"),
        ({"expires_at": "2026-01-01T00:00:00"}, "expires_at", "has no offset"),
        ({"limits": {"max_parallel": -1}}, "limits.max_parallel", "limits.max_parallel: Expected `int` >= 0"),
        ({"limits": {"rpm": 5}}, "limits.rpm", "limits.rpm: unknown field"),
        ({"name": ""}, "name", "name: must not be empty"),
        ({"name": "a\x00b"}, "name", "name: write it on one line, without control characters"),
        ({"tags": {"a b": "c"}}, "tags", "write names of 1 to 64 characters out of A-Z a-z 0-9 _ . -"),
        ({"models": "deepseek-chat"}, "models", "models: Expected `array | null`, got `str`"),
        ({"colour": "red"}, "colour", "colour: unknown field"),
        ({"name": "n" * 201}, "name", "name: must have at most 200 characters"),
        ({"models": ["m"] * 1001}, "models", "models: must have at most 1000 entries"),
    ],
)
async def test_a_bad_key_is_a_422_that_names_the_field(
    operator: Operator, change: dict[str, object], param: str, message: str
) -> None:
    body = {"team_id": await operator.team(), "name": "ci", **change}
    named, said = await operator.refused("/keys", body)
    assert named == param
    assert message in said
