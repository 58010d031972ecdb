"""Settlement terms: at which rate a team pays us, or we pay a provider, when the list price stands in another currency.

`fixed` is an agreed rate (CNY 1 for each list USD 1) or, where the terms name none, the contract rate of the rate book;
`market_plus_bps` is the reference rate plus basis points. Rows are append-only; the newest that has started applies, as the
pinned version of the book knew it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from billing.exchange import IDENTITY, Quote, RateBook, RateKind
from billing.money import PICO

FIXED: Final = "fixed"
MARKET_PLUS_BPS: Final = "market_plus_bps"
POLICIES: Final = (FIXED, MARKET_PLUS_BPS)


@dataclass(frozen=True, slots=True)
class TermsRow:
    """Exactly one of `team_id` and `provider` is set. One `base` settles as `rate_pico` 1e-12 `quote`, or at the reference
    rate plus `bps` ten-thousandths."""

    id: int
    team_id: str | None
    provider: str | None
    policy: str
    rate_pico: int | None
    bps: int | None
    base: str
    quote: str
    effective_from_us: int
    recorded_at_us: int = 0

    def settlement(self, rates: RateBook, at_us: int, rates_version: int) -> Quote | None:
        """The exact rate from `base` to `quote`; None when the market has none at that moment."""
        if self.policy == FIXED:
            if self.rate_pico is None:
                return rates.find(RateKind.CONTRACT, self.base, self.quote, at_us, rates_version)
            return Quote(self.rate_pico, PICO, ())
        assert self.bps is not None
        market = rates.find(RateKind.REFERENCE, self.base, self.quote, at_us, rates_version)
        if market is None:
            return None
        return Quote(market.numerator * (10_000 + self.bps), market.denominator * 10_000, market.rate_ids)


class TermsBook:
    """All terms ever recorded, immutable. `version` is the highest row id; 0 is the empty book."""

    def __init__(self, rows: Iterable[TermsRow]) -> None:
        self.rows: tuple[TermsRow, ...] = tuple(sorted(rows, key=lambda row: row.id))
        self.version = self.rows[-1].id if self.rows else 0
        self._by_id = {row.id: row for row in self.rows}
        newest_first = sorted(self.rows, key=lambda row: (row.effective_from_us, row.id), reverse=True)
        self._teams: dict[tuple[str, str, str], list[TermsRow]] = {}
        self._providers: dict[tuple[str, str], list[TermsRow]] = {}
        for row in newest_first:
            if row.team_id is not None:
                self._teams.setdefault((row.team_id, row.base, row.quote), []).append(row)
            else:
                assert row.provider is not None
                self._providers.setdefault((row.provider, row.base), []).append(row)

    def find_team(self, team_id: str, base: str, quote: str, at_us: int, version: int) -> TermsRow | None:
        """What this team agreed for `base` settled in `quote`."""
        return _in_force(self._teams.get((team_id, base, quote), ()), at_us, version)

    def find_provider(self, provider: str, base: str, at_us: int, version: int) -> TermsRow | None:
        """What we agreed with this provider for its list prices in `base`; the row says in which currency we pay."""
        return _in_force(self._providers.get((provider, base), ()), at_us, version)

    def by_id(self, row_id: int) -> TermsRow | None:
        return self._by_id.get(row_id)


def _in_force(newest_first: Iterable[TermsRow], at_us: int, version: int) -> TermsRow | None:
    for row in newest_first:
        if row.id <= version and row.effective_from_us <= at_us:
            return row
    return None


def settlement_quote(
    terms: TermsBook,
    rates: RateBook,
    *,
    team_id: str,
    base: str,
    quote: str,
    at_us: int,
    terms_version: int,
    rates_version: int,
) -> tuple[Quote | None, TermsRow | None]:
    """The rate at which a team settles `base` in `quote`, with the terms that say so. Identity within one currency."""
    if base == quote:
        return IDENTITY, None
    row = terms.find_team(team_id, base, quote, at_us, terms_version)
    if row is None:
        return None, None
    return row.settlement(rates, at_us, rates_version), row
