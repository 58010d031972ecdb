"""Small builders: books out of a few words, request ids at a moment, rated records."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from uuid import UUID

from billing.books import Books
from billing.exchange import RateBook, RateKind, RateRow
from billing.ledger import AttemptRecord, UsageRecord
from billing.money import MICRO, PICO, parse_scaled
from billing.prices import PriceBook, PriceRow
from billing.rating import AttemptUsage, Payer, rate
from billing.terms import TermsBook, TermsRow
from billing.times import parse_time, time_us_of
from billing.usage import TokenClass, Usage

DAY = "2026-11-30"
NOON_US = parse_time(f"{DAY}T12:00:00Z", "at")
_sequence = itertools.count()


def at(text: str) -> int:
    return parse_time(text, "at")


def request_id(at_us: int) -> UUID:
    """A UUIDv7 of that millisecond, never the same twice."""
    low = (os.getpid() << 32 | next(_sequence)) * 0x9E3779B97F4A7C15 & (1 << 62) - 1
    return UUID(int=(at_us // 1000) << 80 | 7 << 76 | 2 << 62 | low)


def price(
    row_id: int,
    token_class: str,
    amount: str,
    *,
    version: int = 1,
    price_list: str = "deepseek",
    model: str = "deepseek-chat",
    currency: str = "USD",
    unit: str = "mtok",
    tier: str = "default",
    processing: str = "standard",
    above: int = 0,
    since: str = "2026-01-01T00:00:00Z",
) -> PriceRow:
    return PriceRow(
        row_id,
        version,
        price_list,
        model,
        TokenClass(token_class),
        currency,
        parse_scaled(amount, MICRO, "amount"),
        unit,
        tier,
        processing,
        above,
        at(since),
        None,
    )


def rate_row(row_id: int, pair: str, kind: RateKind, value: str, since: str = "2026-01-01T00:00:00Z") -> RateRow:
    base, quote = pair.split("/")
    return RateRow(row_id, base, quote, kind, parse_scaled(value, PICO, "rate"), "test", at(since), 0)


def fixed_terms(row_id: int, value: str, *, team: str | None = "team_a", provider: str | None = None) -> TermsRow:
    return TermsRow(
        row_id,
        None if provider else team,
        provider,
        "fixed",
        parse_scaled(value, PICO, "rate"),
        None,
        "USD",
        "CNY",
        at("2026-01-01T00:00:00Z"),
    )


def market_terms(row_id: int, bps: int, *, team: str = "team_a") -> TermsRow:
    return TermsRow(row_id, team, None, "market_plus_bps", None, bps, "USD", "CNY", at("2026-01-01T00:00:00Z"))


def books(*rows: PriceRow | RateRow | TermsRow) -> Books:
    return Books(
        PriceBook(row for row in rows if isinstance(row, PriceRow)),
        RateBook(row for row in rows if isinstance(row, RateRow)),
        TermsBook(row for row in rows if isinstance(row, TermsRow)),
    )


FOUNDING = books(
    price(1, "input", "0.28"),
    price(2, "output", "0.42"),
    price(3, "cache_read", "0.028"),
    rate_row(1, "USD/CNY", RateKind.POLICY, "7.3"),
    rate_row(2, "USD/CNY", RateKind.REFERENCE, "6.6529", "2026-11-27T15:00:00Z"),
    fixed_terms(1, "1"),
)
"""DeepSeek V3.2 in USD, the official rate, a market rate, and a team that pays CNY 1 for each USD 1."""


def used(usage: Usage, *, sequence: int = 1, tier: str = "default", provider: str = "deepseek") -> AttemptUsage:
    return AttemptUsage(sequence, "deepseek", "deepseek-chat", provider, usage, tier)


def rated_record(
    usage: Usage,
    *,
    id_: UUID | None = None,
    team: str = "team_a",
    key: str = "key_a",
    model: str = "deepseek-chat",
    currency: str = "CNY",
    status: str = "completed",
    world: Books = FOUNDING,
    tags: Mapping[str, str] | None = None,
    estimated: bool = False,
    latency_us: int = 800_000,
    payer_team: str = "team_a",
) -> UsageRecord:
    """One answered request, rated with the newest state of `world`, whose terms are made out to `payer_team`."""
    id_ = id_ or request_id(NOON_US)
    attempt = used(usage)
    pins = world.pins()
    rated = rate(
        world, pins, at_us=time_us_of(id_), payer=Payer(payer_team, currency), charged=attempt, attempts=[attempt]
    )
    outcome = AttemptRecord(
        sequence=1,
        provider="deepseek",
        provider_model="deepseek-chat",
        status=status,
        usage=usage,
        cost=rated.attempts[0].cost,
        price_row_ids=rated.attempts[0].price_row_ids,
        error=None,
        started_at_us=time_us_of(id_),
        latency_us=latency_us,
        ttft_us=120_000,
    )
    return UsageRecord(
        id=id_,
        team_id=team,
        key_id=key,
        model=model,
        provider="deepseek",
        provider_model="deepseek-chat",
        surface="chat",
        status=status,
        estimated=estimated,
        streamed=True,
        usage=usage,
        rated=rated,
        attempts=(outcome,),
        tags=tags or {},
        latency_us=latency_us,
        ttft_us=120_000,
        error=None,
        pins=pins,
        settlement_currency=currency,
    )
