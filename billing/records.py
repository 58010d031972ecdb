"""What the books take in (one record per request) and give out (one view per usage row)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import msgspec

from billing.books import Pins
from billing.money import Money
from billing.rating import Rated
from billing.usage import Usage
from billing.wallets import WalletEvent


class AttemptRecord(msgspec.Struct, frozen=True, gc=False):
    """One call to one provider, answered or not. `cost` is what it costs us; None: unknown or nothing used."""

    sequence: int
    provider: str
    provider_model: str
    status: str
    usage: Usage | None
    cost: Money | None
    price_row_ids: tuple[int, ...]
    error: str | None
    started_at_us: int
    latency_us: int
    ttft_us: int | None
    service_tier: str = "default"
    processing: str = "standard"
    cost_per_hour: Money | None = None
    """The price of an hour of the engine that `cost` was computed from, instead of price rows."""


class UsageRecord(msgspec.Struct, frozen=True, gc=False):
    """One request, rated. `provider` and `provider_model` name the attempt that answered; None: nobody did.

    `kind` is `usage`, or `reversal` and `correction`, whose `corrects_id` names the row they put right.
    """

    id: UUID
    team_id: str
    key_id: str
    model: str
    provider: str | None
    provider_model: str | None
    surface: str
    status: str
    estimated: bool
    streamed: bool
    usage: Usage
    rated: Rated
    attempts: tuple[AttemptRecord, ...]
    tags: Mapping[str, str]
    latency_us: int
    ttft_us: int | None
    error: str | None
    pins: Pins
    settlement_currency: str
    kind: str = "usage"
    corrects_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class RecordResult:
    """How many rows were new and which, how many stood in the books already (or twice in the batch), and the low-balance events
    that the new ones led to."""

    inserted: int
    duplicates: int
    new_ids: frozenset[UUID] = frozenset()
    events: tuple[WalletEvent, ...] = ()


class MoneyView(msgspec.Struct, frozen=True):
    """Money as it stands in JSON: an exact decimal string."""

    amount: str
    currency: str

    @classmethod
    def of(cls, money: Money | None) -> MoneyView | None:
        return None if money is None else cls(money.amount, money.currency)

    @classmethod
    def of_nano(cls, nano: int | None, currency: str | None) -> MoneyView | None:
        return None if nano is None or not currency else cls(Money(currency, nano).amount, currency)


class PriceView(msgspec.Struct, frozen=True, omit_defaults=False):
    """One price row, as the API shows it."""

    id: int
    book_version: int
    provider: str
    model: str
    token_class: str
    currency: str
    amount: str
    unit: str
    service_tier: str
    processing: str
    min_input_tokens: int
    effective_from: str
    source: str | None


class RateView(msgspec.Struct, frozen=True):
    """One rate row, as the API shows it."""

    id: int
    kind: str
    base: str
    quote: str
    rate: str
    source: str
    effective_from: str
    recorded_at: str


class TermsView(msgspec.Struct, frozen=True):
    """One terms row, as the API shows it."""

    id: int
    team_id: str | None
    provider: str | None
    policy: str
    rate: str | None
    bps: int | None
    base: str
    quote: str
    effective_from: str


class SellView(msgspec.Struct, frozen=True):
    """One sell row, as the API shows it: `sell_list` or `multiplier`; a null `provider` (price list) or `model` means any."""

    id: int
    team_id: str
    provider: str | None
    model: str | None
    sell_list: str | None
    multiplier: str | None
    effective_from: str


class CorrectionView(msgspec.Struct, frozen=True):
    """The rows that put a usage row right: its reversal and, unless it was only taken back, its replacement."""

    original: str
    reversal: str
    replacement: str | None
    reason: str
    actor: str
    recorded_at: str


class LineView(msgspec.Struct, frozen=True):
    token_class: str
    quantity: int
    price_row: int | None
    list: MoneyView | None
    settled: MoneyView | None
    policy: MoneyView | None
    reference: MoneyView | None


class AttemptView(msgspec.Struct, frozen=True):
    """`cost` is computed from `price_rows`, or is `tokens.compute_us` of an engine at `cost_per_hour`."""

    sequence: int
    provider: str
    provider_model: str
    status: str
    tokens: dict[str, int] | None
    cost: MoneyView | None
    price_rows: list[int]
    cost_per_hour: MoneyView | None
    error: str | None
    started_at: str
    latency_ms: int
    ttft_ms: int | None
    service_tier: str
    processing: str


_Lines: TypeAlias = list[LineView]
_Prices: TypeAlias = list[PriceView]
_Rates: TypeAlias = list[RateView]
_Attempts: TypeAlias = list[AttemptView]


class UsageView(msgspec.Struct, frozen=True):
    """A usage row with everything the outside contract lists; `msgspec.json.encode` gives its JSON.

    `saving_percent` is 1 - settled / policy with four decimals, None where there is no policy amount. `margin` is settled less
    cost at the reference rate; `negative_margin` flags a row that costs more than it brings. `sell` says what the team is sold
    at (null: the price itself). `corrected_by` names the rows that put this one right.
    """

    id: str
    kind: str
    corrects: str | None
    at: str
    team_id: str
    key_id: str
    model: str
    provider: str | None
    provider_model: str | None
    surface: str
    status: str
    estimated: bool
    streamed: bool
    tokens: dict[str, int]
    list: MoneyView | None
    settled: MoneyView | None
    policy: MoneyView | None
    reference: MoneyView | None
    cost: MoneyView | None
    margin: MoneyView | None
    negative_margin: bool
    saving_percent: str | None
    unpriced: str | None
    flaw: str | None
    lines: _Lines
    price_rows: _Prices
    rates: _Rates
    terms: TermsView | None
    sell: SellView | None
    corrected_by: CorrectionView | None
    attempts: _Attempts
    tags: dict[str, str]
    latency_ms: int
    ttft_ms: int | None
    error: str | None
