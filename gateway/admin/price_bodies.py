"""Prices as bodies and answers: what is posted, alone or in a draft, and how a row is shown."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from billing.prices import PriceRow
from billing.publishing import PriceDraft
from billing.records import PriceView
from billing.times import now_us
from billing.usage import TokenClass
from billing.views import price_view
from gateway.admin.failures import invalid
from gateway.admin.texts import Currency, Decimal, Moment, Note, Text, moment_us


class PostPrice(Struct, frozen=True, forbid_unknown_fields=True):
    """A price per `unit`, as `amount` or under its everyday name `amount_per_mtok`; at most six decimals.

    `provider` is a price list: a provider's name, or its `price_as`. Without `effective_from` it holds from now on.
    """

    provider: Text
    model: Text
    token_class: TokenClass
    currency: Currency
    amount_per_mtok: Decimal | None = None
    amount: Decimal | None = None
    effective_from: Moment | None = None
    unit: Literal["mtok", "request", "second", "image", "hour"] | None = None
    service_tier: Text = "default"
    processing: Literal["standard", "batch"] = "standard"
    min_input_tokens: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    source: Note | None = None


class PriceAnswer(PriceView, frozen=True):
    """`amount` is per `unit`; `amount_per_mtok` is the same for a price per million tokens, else null."""

    amount_per_mtok: str | None


def draft_of(data: PostPrice, at: str = "") -> PriceDraft:
    """The row that a body asks for; `at` says where the body stands in a longer one."""
    amounts = [amount for amount in (data.amount_per_mtok, data.amount) if amount is not None]
    if len(amounts) != 1:
        raise invalid(f"{at}amount_per_mtok: give it, or amount, and not both", f"{at}amount_per_mtok")
    effective_from_us = moment_us(data.effective_from, f"{at}effective_from")
    return PriceDraft(
        price_list=data.provider,
        model=data.model,
        token_class=data.token_class,
        currency=data.currency,
        amount=amounts[0],
        effective_from_us=now_us() if effective_from_us is None else effective_from_us,
        unit=data.unit,
        service_tier=data.service_tier,
        processing=data.processing,
        min_input_tokens=data.min_input_tokens,
        source=data.source,
    )


def answer_of(row: PriceRow) -> PriceAnswer:
    fields: dict[str, Any] = msgspec.structs.asdict(price_view(row))
    return PriceAnswer(**fields, amount_per_mtok=fields["amount"] if row.unit == "mtok" else None)
