"""A real catalog over a real database, and an admission over both: what the tests of `Admission` stand in."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import BudgetRow, create_budget
from billing.publishing import PriceDraft, publish_prices
from billing.rating import AttemptUsage, Payer, Rated, rate
from billing.recording import record_rate, record_terms
from billing.teams import TeamRow, create_team
from billing.usage import Usage
from gateway.access.identity import Identity
from gateway.access.pepper import Pepper
from gateway.admission.admission import Admission
from gateway.admission.lease import Lease
from gateway.admission.limits import Limits
from gateway.admission.store import LimitStore
from gateway.catalog import Catalog
from gateway.ids import new_request_id, time_us_of
from gateway.settings import LimitSettings, ModelSettings, RouteSettings, Settings

SINCE_US = 1_700_000_000_000_000


@dataclass(frozen=True)
class Priced:
    """A candidate route, as far as admission looks at one."""

    price_list: str = "deepseek"
    model: str = "deepseek-chat"


CHEAP, DEAR, UNPRICED, EURO, PICTURES, FLAT, HALF = (
    Priced(),
    Priced("claude", "sonnet"),
    Priced("nobody", "knows"),
    Priced("mistral", "large"),
    Priced("pictures", "fox"),
    Priced("flat", "flat"),
    Priced("half", "half"),
)


def model(name: str = "chat", most: int | None = 8192) -> ModelSettings:
    return ModelSettings(name=name, routes=[RouteSettings(provider="p", model="m")], max_output_tokens=most)


@dataclass
class House:
    """USD prices; a team that settles CNY at 1:1, and one that settles USD."""

    database: AsyncEngine
    catalog: Catalog
    admission: Admission
    chinese: TeamRow
    american: TeamRow
    leases: list[Lease[Any]] = field(default_factory=list)

    @classmethod
    async def build(cls, database: AsyncEngine, store: LimitStore, lease_ttl_s: float = 60) -> House:
        async with database.begin() as connection:
            chinese = await create_team(connection, name="search", settlement_currency="CNY")
            american = await create_team(connection, name="ads", settlement_currency="USD")
            await publish_prices(
                connection,
                [
                    PriceDraft("deepseek", "deepseek-chat", "input", "USD", "0.28", SINCE_US),
                    PriceDraft("deepseek", "deepseek-chat", "cache_read", "USD", "0.028", SINCE_US),
                    PriceDraft("deepseek", "deepseek-chat", "output", "USD", "0.42", SINCE_US),
                    PriceDraft("claude", "sonnet", "input", "USD", "3", SINCE_US),
                    PriceDraft("claude", "sonnet", "cache_write_1h", "USD", "6", SINCE_US),
                    PriceDraft("claude", "sonnet", "output", "USD", "15", SINCE_US),
                    PriceDraft("mistral", "large", "input", "EUR", "2", SINCE_US),
                    PriceDraft("mistral", "large", "output", "EUR", "6", SINCE_US),
                    PriceDraft("pictures", "fox", "request", "USD", "0.01", SINCE_US, unit="request"),
                    PriceDraft("pictures", "fox", "image_output", "USD", "0.04", SINCE_US, unit="image"),
                    PriceDraft("flat", "flat", "request", "USD", "0.5", SINCE_US, unit="request"),
                    PriceDraft("half", "half", "request", "USD", "0.5", SINCE_US, unit="request"),
                    PriceDraft("half", "half", "input", "USD", "1", SINCE_US),
                    PriceDraft("free", "free", "input", "USD", "0", SINCE_US),
                    PriceDraft("free", "free", "output", "USD", "0", SINCE_US),
                ],
            )
            await record_terms(
                connection,
                team_id=chinese.id,
                base="USD",
                quote="CNY",
                policy="fixed",
                rate="1",
                effective_from_us=SINCE_US,
            )
        catalog = Catalog(database, Pepper(b"p" * 32, "the test"))
        await catalog.refresh()
        settings = Settings(limits=LimitSettings(default_output_reserve=4096))
        admission = Admission(catalog, store, settings, database, lease_ttl_s=lease_ttl_s)
        await admission.start()
        return cls(database, catalog, admission, chinese, american)

    async def budget(self, amount: str, team: TeamRow | None = None, **changes: Any) -> BudgetRow:
        """A hard budget for ever of `team`, unless `changes` say otherwise; the catalog knows it."""
        values: dict[str, Any] = {"period": "total", "scope": "team", "hard": True}
        if team is not None:
            values |= {"scope_id": team.id, "currency": team.settlement_currency}
        async with self.database.begin() as connection:
            row = await create_budget(connection, amount=amount, **(values | changes))
        await self.catalog.refresh()
        return row

    async def rate(self, base: str, quote: str, value: str) -> None:
        async with self.database.begin() as connection:
            await record_rate(
                connection,
                base=base,
                quote=quote,
                kind="reference",
                rate=value,
                source="test",
                effective_from_us=time.time_ns() // 1000 - 3_600_000_000,
            )
        await self.catalog.refresh()

    def key(self, team: TeamRow, limits: Limits | None = None, **changes: Any) -> Identity:
        values: dict[str, Any] = {
            "key_id": f"key_{team.name}",
            "team_id": team.id,
            "key_name": "ci",
            "public_id": "public",
            "settlement_currency": team.settlement_currency,
            "models": None,
            "limits": limits or Limits(),
            "allowed_ips": None,
            "expires_at_us": None,
            "tags": {},
            "prepaid": False,
            "revoked": False,
            "team_lost_charge": "input",
        }
        return Identity(**(values | changes))

    async def admit(self, identity: Identity, *routes: Priced, **changes: Any) -> Lease[Priced]:
        """1,000 input tokens, at most 500 of output, unless `changes` say otherwise. The house keeps the lease alive."""
        request_id = new_request_id()
        values: dict[str, Any] = {
            "request_id": request_id,
            "input_tokens": 1000,
            "output_cap": 500,
            "n": 1,
            "candidates": routes or (CHEAP,),
            "at_us": time_us_of(request_id),
            "model": model(),
        }
        lease: Lease[Priced] = await self.admission.admit(identity, **(values | changes))
        self.leases.append(lease)
        return lease

    def rated(self, lease: Lease[Priced], usage: Usage, route: Priced = CHEAP) -> Rated:
        attempt = AttemptUsage(1, route.price_list, route.model, route.price_list, usage)
        payer = Payer(lease.identity.team_id, lease.identity.settlement_currency)
        books, pins = lease.snapshot.books, lease.snapshot.pins
        return rate(books, pins, at_us=lease.at_us, payer=payer, charged=attempt, attempts=[attempt])

    async def settle(self, lease: Lease[Priced], usage: Usage, route: Priced = CHEAP) -> Rated:
        rated = self.rated(lease, usage, route)
        await self.admission.settle(lease, rated=rated, tokens=usage.total)
        return rated
