"""What rating takes and gives: who pays, what an attempt used, and the amounts that came of it."""

from __future__ import annotations

from typing import Final

import msgspec

from billing.money import Money
from billing.usage import TokenClass, Usage

OVERFLOW: Final = "overflow"
"""How `unpriced` begins where an amount would leave 64 bits."""


class Payer(msgspec.Struct, frozen=True, gc=False):
    """Who is charged, and in which currency."""

    team_id: str
    currency: str


class AttemptUsage(msgspec.Struct, frozen=True, gc=False):
    """What one attempt used, and on which price list and model it is priced.

    `cost_per_hour` is what an hour of the engine costs us that served it: its cost is then its share of engine time, and the
    price list says only what it is sold at.
    """

    sequence: int
    price_list: str
    model: str
    provider: str
    usage: Usage
    service_tier: str = "default"
    processing: str = "standard"
    cost_per_hour: Money | None = None

    @property
    def by_the_hour(self) -> bool:
        """Whether its cost is engine time. Where the engine told none (it died, or is another make), tokens are all there is;
        an engine whose hour costs nothing costs nothing, however long it took."""
        hour = self.cost_per_hour
        return hour is not None and (self.usage.compute_us > 0 or not hour.nano or not self.usage.lines())


class RatedLine(msgspec.Struct, frozen=True, gc=False):
    """One class of one request. The list amount is in `currency`, the other three in the payer's."""

    token_class: TokenClass
    quantity: int
    price_row_id: int | None
    currency: str | None
    list_nano: int | None
    settled_nano: int | None
    policy_nano: int | None
    reference_nano: int | None

    def without_amounts(self) -> RatedLine:
        return RatedLine(self.token_class, self.quantity, None, None, None, None, None, None)


class RatedAttempt(msgspec.Struct, frozen=True, gc=False):
    """What one attempt costs us at the provider, under the provider's terms where there are any: at the price rows named, or at
    `cost_per_hour` for its engine time."""

    sequence: int
    cost: Money | None
    price_row_ids: tuple[int, ...]
    unpriced: str | None
    cost_per_hour: Money | None = None


class Rated(msgspec.Struct, frozen=True, gc=False):
    """What the team is charged (`list`, then `settled`; `policy` and `reference` to compare with) and what it costs us.

    `unpriced` says why an amount that ought to be there is None. `policy` and `reference` are also None, without a reason,
    where no such rate is in force. Settled, policy and reference are in the payer's currency.

    `sell_id` names the row that says what the team is sold at (None: the price of the route that served). `margin` is settled
    less cost in the payer's currency, at the reference rate; None where one of them or the rate is missing.
    """

    lines: tuple[RatedLine, ...]
    list: Money | None
    settled: Money | None
    policy: Money | None
    reference: Money | None
    cost: Money | None
    price_row_ids: tuple[int, ...]
    rate_ids: tuple[int, ...]
    terms_id: int | None
    attempts: tuple[RatedAttempt, ...]
    unpriced: str | None
    sell_id: int | None = None
    margin: Money | None = None
    known_nano: int = 0
    """What the classes that have a price come to, in nano of the payer's currency, where the whole has none. Budgets count it;
    nobody is charged it."""

    @property
    def overflow(self) -> bool:
        """Whether the charge is more than 64 bits hold: no amount stands for it, and it is the most to every budget."""
        return self.unpriced is not None and self.unpriced.startswith(OVERFLOW)

    def without_amounts(self, why: str) -> Rated:
        """The same quantities, with no amount that could overflow a sum: an `overflow`, for the reason given."""
        lines = tuple([line.without_amounts() for line in self.lines])
        nothing = dict.fromkeys(("list", "settled", "policy", "reference", "cost", "margin"))
        return msgspec.structs.replace(self, lines=lines, price_row_ids=(), unpriced=f"{OVERFLOW}: {why}", **nothing)
