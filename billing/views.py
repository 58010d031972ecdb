"""Catalog rows as the API shows them: decimal strings, RFC 3339 times."""

from __future__ import annotations

from billing.exchange import RateRow
from billing.money import MICRO, PICO, divide_half_even, format_scaled
from billing.prices import PriceRow
from billing.records import PriceView, RateView, SellView, TermsView
from billing.selling import SellRow
from billing.terms import TermsRow
from billing.times import format_time


def price_view(row: PriceRow) -> PriceView:
    return PriceView(
        id=row.id,
        book_version=row.book_version,
        provider=row.price_list,
        model=row.model,
        token_class=str(row.token_class),
        currency=row.currency,
        amount=format_scaled(row.amount_micro, MICRO),
        unit=row.unit,
        service_tier=row.service_tier,
        processing=row.processing,
        min_input_tokens=row.min_input_tokens,
        effective_from=format_time(row.effective_from_us),
        source=row.source,
    )


def rate_view(row: RateRow) -> RateView:
    return RateView(
        id=row.id,
        kind=str(row.kind),
        base=row.base,
        quote=row.quote,
        rate=format_scaled(row.rate_pico, PICO),
        source=row.source,
        effective_from=format_time(row.effective_from_us),
        recorded_at=format_time(row.recorded_at_us),
    )


def terms_view(row: TermsRow) -> TermsView:
    return TermsView(
        id=row.id,
        team_id=row.team_id,
        provider=row.provider,
        policy=row.policy,
        rate=None if row.rate_pico is None else format_scaled(row.rate_pico, PICO),
        bps=row.bps,
        base=row.base,
        quote=row.quote,
        effective_from=format_time(row.effective_from_us),
    )


def sell_view(row: SellRow) -> SellView:
    return SellView(
        id=row.id,
        team_id=row.team_id,
        provider=row.price_list,
        model=row.model,
        sell_list=row.sell_list,
        multiplier=None if row.multiplier_micro is None else format_scaled(row.multiplier_micro, MICRO),
        effective_from=format_time(row.effective_from_us),
    )


def saving_percent(settled_nano: int | None, policy_nano: int | None) -> str | None:
    """1 - settled / policy in percent, exact and rounded half-even to four decimals; None without a policy amount."""
    if settled_nano is None or not policy_nano:
        return None
    numerator, denominator = (policy_nano - settled_nano) * 1_000_000, policy_nano
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    return format_scaled(divide_half_even(numerator, denominator), 10_000)
