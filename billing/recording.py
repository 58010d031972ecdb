"""Catalog writes: exchange rates, settlement terms and sell prices, checked, or not at all.

Rows are append-only and bitemporal: a later row closes an earlier one, a second row for the same moment corrects it for
whoever looks from now on.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import and_, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from billing import tables
from billing.checks import check_text, parse_field
from billing.currencies import check_currency
from billing.database import bump_catalog_version
from billing.errors import InvalidRate, InvalidSell, InvalidTerms, NotFound
from billing.exchange import RateKind, RateRow
from billing.issued import refuse_backdated
from billing.money import MICRO, PICO, format_scaled
from billing.selling import SellRow
from billing.terms import FIXED, POLICIES, TermsRow
from billing.times import check_time, now_us

MAX_RATE_PICO: Final = 8_000_000 * PICO
"""One unit of the strongest currency is a few million of the weakest. Also what 64 bits of pico hold."""
MIN_RATE_PICO: Final = 10_000
MAX_RATE_STEP: Final = 20
"""A rate that differs from the last of its pair by more than this factor is a slip of the keyboard."""
MAX_BPS: Final = 100_000
MAX_MULTIPLIER_MICRO: Final = 1_000 * MICRO


async def record_rate(
    connection: AsyncConnection,
    *,
    base: str,
    quote: str,
    kind: str,
    rate: str,
    source: str,
    effective_from_us: int,
) -> RateRow:
    """Record one rate. A second row for the same moment is a correction: it applies to whoever looks from now on, and requests
    that pinned the book before keep the old one. Raises `InvalidRate`, `InvalidCurrency`, `InvalidAmount` or `InvalidTime`.
    """
    check_currency(base, "base")
    check_currency(quote, "quote")
    if base == quote:
        raise InvalidRate("quote: a rate needs two currencies", field="quote")
    if kind not in list(RateKind):
        raise InvalidRate(f"kind: {kind!r} is none of {', '.join(RateKind)}", field="kind")
    check_text(source, "source", InvalidRate)
    rate_pico = _parse_rate(rate, InvalidRate)
    check_time(effective_from_us, "effective_from")
    await bump_catalog_version(connection)
    if kind != RateKind.REFERENCE:  # the market's history may come late: rows keep the rates they were made with
        await refuse_backdated(connection, effective_from_us)
    table = tables.rate_rows
    pair = or_(and_(table.c.base == base, table.c.quote == quote), and_(table.c.base == quote, table.c.quote == base))
    last = (
        await connection.execute(select(table).where(pair, table.c.kind == kind).order_by(table.c.id.desc()).limit(1))
    ).one_or_none()
    if last is not None:
        if last.base != base:
            raise InvalidRate(
                f"base: {last.base}/{last.quote} is recorded already; its inverse is derived, never stored",
                field="base",
            )
        if not last.rate_pico <= rate_pico * MAX_RATE_STEP or not rate_pico <= last.rate_pico * MAX_RATE_STEP:
            raise InvalidRate(
                f"rate: {rate} is more than {MAX_RATE_STEP} times off the last one, {format_scaled(last.rate_pico, PICO)}",
                field="rate",
            )
    recorded_at_us = now_us()
    values = {
        "base": base,
        "quote": quote,
        "kind": kind,
        "rate_pico": rate_pico,
        "source": source,
        "effective_from_us": effective_from_us,
        "recorded_at_us": recorded_at_us,
    }
    row_id = await connection.scalar(insert(table).values(values).returning(table.c.id))
    assert row_id is not None
    return RateRow(row_id, base, quote, RateKind(kind), rate_pico, source, effective_from_us, recorded_at_us)


async def record_terms(
    connection: AsyncConnection,
    *,
    base: str,
    quote: str,
    policy: str,
    effective_from_us: int,
    team_id: str | None = None,
    provider: str | None = None,
    rate: str | None = None,
    bps: int | None = None,
) -> TermsRow:
    """Record settlement terms for exactly one of a team and a provider. `fixed` takes a rate (without one, the contract rate of
    the rate book, which must then exist), `market_plus_bps` basis points. Raises `InvalidTerms`, `InvalidCurrency`,
    `InvalidAmount`, `InvalidTime` or `NotFound`.
    """
    if (team_id is None) == (provider is None):
        raise InvalidTerms("team_id: give exactly one of team_id and provider", field="team_id")
    if provider is not None:
        check_text(provider, "provider", InvalidTerms)
    check_currency(base, "base")
    check_currency(quote, "quote")
    rate_pico = checked_terms(policy, rate, bps, base, quote)
    check_time(effective_from_us, "effective_from")
    await bump_catalog_version(connection)
    await refuse_backdated(connection, effective_from_us, team_id=team_id)
    if team_id is not None:
        await _check_team_terms(connection, team_id, base, quote)
    if policy == FIXED and rate_pico is None:
        await _require_contract_rate(connection, base, quote)
    values = {
        "team_id": team_id,
        "provider": provider,
        "policy": policy,
        "rate_pico": rate_pico,
        "bps": bps,
        "base": base,
        "quote": quote,
        "effective_from_us": effective_from_us,
        "recorded_at_us": now_us(),
    }
    row_id = await connection.scalar(insert(tables.terms_rows).values(values).returning(tables.terms_rows.c.id))
    assert row_id is not None
    return TermsRow(id=row_id, **values)  # type: ignore[arg-type]


async def record_sell(
    connection: AsyncConnection,
    *,
    team_id: str,
    effective_from_us: int,
    price_list: str | None = None,
    model: str | None = None,
    sell_list: str | None = None,
    multiplier: str | None = None,
) -> SellRow:
    """Say what a team is sold at: the prices of `sell_list`, or `multiplier` times the provider's price; for everything, or for
    one price list or model alone. Raises `InvalidSell`, `InvalidAmount`, `InvalidTime` or `NotFound`.
    """
    if (sell_list is None) == (multiplier is None):
        raise InvalidSell("multiplier: give exactly one of multiplier and sell_list", field="multiplier")
    for field, text in (("provider", price_list), ("model", model), ("sell_list", sell_list)):
        if text is not None:
            check_text(text, field, InvalidSell)
    multiplier_micro = None if multiplier is None else parse_field(multiplier, MICRO, "multiplier")
    if multiplier_micro is not None and not 0 <= multiplier_micro <= MAX_MULTIPLIER_MICRO:
        most = format_scaled(MAX_MULTIPLIER_MICRO, MICRO)
        raise InvalidSell(f"multiplier: {multiplier} is outside 0..{most}", field="multiplier")
    check_time(effective_from_us, "effective_from")
    await bump_catalog_version(connection)
    await refuse_backdated(connection, effective_from_us, team_id=team_id)
    if await connection.scalar(select(tables.teams.c.id).where(tables.teams.c.id == team_id)) is None:
        raise NotFound(f"team_id: no team {team_id!r}", field="team_id")
    prices = tables.price_rows.c
    if sell_list is not None:
        priced = select(prices.id).where(prices.price_list == sell_list).limit(1)
        if await connection.scalar(priced) is None:
            raise InvalidSell(
                f"sell_list: no price stands on list {sell_list!r}; publish its prices first", field="sell_list"
            )
    values = {
        "team_id": team_id,
        "price_list": price_list,
        "model": model,
        "sell_list": sell_list,
        "multiplier_micro": multiplier_micro,
        "effective_from_us": effective_from_us,
        "recorded_at_us": now_us(),
    }
    row_id = await connection.scalar(insert(tables.sell_rows).values(values).returning(tables.sell_rows.c.id))
    assert row_id is not None
    return SellRow(id=row_id, **values)  # type: ignore[arg-type]


def checked_terms(policy: str, rate: str | None, bps: int | None, base: str, quote: str) -> int | None:
    """The pico of a fixed rate; None where the terms have none. Raises `InvalidTerms` or `InvalidAmount` by field."""
    if policy not in POLICIES:
        raise InvalidTerms(f"policy: {policy!r} is none of {', '.join(POLICIES)}", field="policy")
    if policy == FIXED:
        if bps is not None:
            raise InvalidTerms("bps: belongs to market_plus_bps, not to fixed terms", field="bps")
        return None if rate is None else _parse_rate(rate, InvalidTerms)
    if rate is not None:
        raise InvalidTerms("rate: belongs to fixed terms, not to market_plus_bps", field="rate")
    if bps is None or not -10_000 < bps <= MAX_BPS:
        raise InvalidTerms(f"bps: market_plus_bps needs basis points above -10000 and up to {MAX_BPS}", field="bps")
    if base == quote:
        raise InvalidTerms("quote: market_plus_bps needs two currencies", field="quote")
    return None


async def _check_team_terms(connection: AsyncConnection, team_id: str, base: str, quote: str) -> None:
    currency = await connection.scalar(select(tables.teams.c.settlement_currency).where(tables.teams.c.id == team_id))
    if currency is None:
        raise NotFound(f"team_id: no team {team_id!r}", field="team_id")
    if quote != currency:
        raise InvalidTerms(f"quote: team {team_id} settles in {currency}, not in {quote}", field="quote")
    if base == quote:
        raise InvalidTerms("base: a list price in the team's own currency settles as it stands", field="base")


async def _require_contract_rate(connection: AsyncConnection, base: str, quote: str) -> None:
    table = tables.rate_rows
    pair = or_(and_(table.c.base == base, table.c.quote == quote), and_(table.c.base == quote, table.c.quote == base))
    if await connection.scalar(select(table.c.id).where(pair, table.c.kind == "contract").limit(1)) is None:
        raise InvalidTerms(
            f"rate: fixed terms need one (or a contract rate for {base}/{quote} recorded before)", field="rate"
        )


def _parse_rate(text: str, error: type[InvalidRate | InvalidTerms]) -> int:
    rate_pico = parse_field(text, PICO, "rate")
    if not MIN_RATE_PICO <= rate_pico <= MAX_RATE_PICO:
        low, high = format_scaled(MIN_RATE_PICO, PICO), format_scaled(MAX_RATE_PICO, PICO)
        raise error(f"rate: {text} is outside {low}..{high}", field="rate")
    return rate_pico
