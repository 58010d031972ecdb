"""One question for all that a round has to ask about, however much that is."""

from __future__ import annotations

from billing.database import reading
from billing.ledger import record
from billing.usage import Usage
from gateway.admission.counted import counted_among
from gateway.ids import new_request_id
from tests.billing.helpers import rated_record
from tests.gateway.admission.house import House


async def test_those_that_have_rows_are_found_among_more_ids_than_a_statement_has_variables(house: House) -> None:
    key = house.key(house.american)
    asked = [new_request_id() for _ in range(40_000)]
    there = asked[::80]
    rows = [
        rated_record(Usage(output=3), id_=each, team=house.american.id, key=key.key_id, currency="USD")
        for each in there
    ]
    async with house.database.begin() as connection:
        await record(connection, rows)
    async with reading(house.database) as connection:
        assert await counted_among(connection, asked) == set(there)
        assert await counted_among(connection, []) == set()
