"""What a request asks for: its scopes, and its worst case in every budget that it draws on, as one claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from billing.budgets import BudgetRow
from billing.errors import NoPrice, NoRate, NoTerms, Unbounded
from billing.rating import Payer
from billing.spending import MOST
from gateway.admission import answers
from gateway.admission.asked import Asked, Standing
from gateway.admission.claims import Charge, Claim, Scope
from gateway.admission.limits import UNLIMITED
from gateway.admission.periods import Periods
from gateway.admission.reservation import OutputCap, PricedRoute, Reserve, worst_list_nano
from gateway.admission.seeding import Seeding
from gateway.admission.wallet import wallet_budget
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.catalog import Snapshot
    from gateway.settings import ModelSettings

R = TypeVar("R", bound=PricedRoute)

USED_US: Final = 10_000_000
"""How often a budget period in use is reported as such."""


class Asking:
    """Prices and claims requests. It remembers of each key what all its requests have in common."""

    def __init__(self, seeding: Seeding, ttl_us: int) -> None:
        self._seeding = seeding
        self._ttl_us = ttl_us
        self._periods = Periods()
        self._reserve = Reserve()
        self._standings: dict[str, Standing] = {}
        self._standing_in: Snapshot | None = None

    def ask(
        self,
        identity: Identity,
        snapshot: Snapshot,
        request_id: UUID,
        at_us: int,
        input_tokens: int,
        cap: OutputCap | None,
        n: int,
        candidates: Sequence[R],
        model: ModelSettings | None,
    ) -> Asked[R]:
        output_tokens = cap.tokens * n if cap is not None else 0
        standing = self._standings.get(identity.key_id)
        if standing is None or standing.identity is not identity or standing.snapshot is not snapshot:
            standing = self._stand(identity, snapshot)
        scopes = standing.scopes
        if model is not None and identity.model_limits:
            limits = identity.model_limits.get(model.name)
            if limits is not None and limits != UNLIMITED:
                scopes = (*scopes, Scope(f"{identity.key_id}/{model.name}", limits))
        asked: Asked[R] = Asked(
            standing,
            request_id,
            at_us,
            model.name if model is not None else candidates[0].model if candidates else "",
            input_tokens,
            output_tokens,
            _token_estimate(input_tokens, output_tokens, cap, scopes),
            scopes,
            standing.budgets,
            [],
            [],
        )
        if candidates:
            self.price(asked, candidates)
        return asked

    def _stand(self, identity: Identity, snapshot: Snapshot) -> Standing:
        if self._standing_in is not snapshot:
            self._standing_in = snapshot
            self._standings.clear()
        budgets = _budgets_over(identity, snapshot)
        standing = self._standings[identity.key_id] = Standing(
            identity,
            snapshot,
            Payer(identity.team_id, identity.settlement_currency),
            (Scope(identity.key_id, identity.limits),) if identity.limits != UNLIMITED else (),
            budgets,
            any(budget.hard for budget in budgets),
        )
        return standing

    def price(self, asked: Asked[R], candidates: Sequence[R]) -> None:
        """The candidates that can be charged, with their worst cases. Raises `ApiError` when none is left."""
        books, pins = asked.standing.snapshot.books, asked.standing.snapshot.pins
        must_be_priced = asked.standing.identity.prepaid or asked.standing.hard
        asked.routes, asked.costs = [], []
        refusal: ApiError | None = None
        for route in candidates:
            cost = 0
            try:
                cost = self._reserve.settled_nano(
                    books, pins, asked.at_us, asked.standing.payer, route, asked.input_tokens, asked.output_tokens
                )
            except NoPrice as error:
                if must_be_priced:
                    unbounded = isinstance(error, Unbounded)
                    refusal = refusal or (answers.unbounded if unbounded else answers.unpriced)(asked.model_name)
                    continue
            except (NoTerms, NoRate) as error:
                refusal = refusal or answers.unsettleable(asked.model_name, str(error))
                continue
            if cost > MOST:
                refusal = refusal or answers.beyond_amounts(asked.model_name)
                continue
            asked.routes.append(route)
            asked.costs.append(cost)
        if not asked.routes and refusal is not None:
            raise refusal

    def claim(self, asked: Asked[R], routes: Sequence[R], costs: Sequence[int]) -> Claim:
        return Claim(asked.request_id, asked.scopes, asked.tokens, self.charges(asked, routes, costs), self._ttl_us)

    def charges(self, asked: Asked[R], routes: Sequence[R], costs: Sequence[int]) -> tuple[Charge, ...]:
        """One charge per budget, in the budgets' order. Raises `ApiError` for a hard budget that cannot be counted."""
        charges = []
        most = max(costs, default=0)
        counted = []
        for budget in asked.budgets:
            try:
                if budget.scope == "all":
                    nano = self._most_listed(asked, routes, budget.currency)
                elif budget.currency == asked.standing.payer.currency:
                    nano = most
                else:
                    raise NoRate(
                        f"it stands in {budget.currency}, and the team settles in {asked.standing.payer.currency}"
                    )
            except NoRate as error:
                if budget.hard:
                    raise answers.uncountable(str(error)) from error
                continue
            period = self._periods.of(budget, asked.at_us)
            if asked.at_us - period.used_us > USED_US:
                period.used_us = asked.at_us
                if budget.hard and not self._seeding.follows(period.window):
                    asked.idle.append(period.window)
                self._seeding.used(period.window)
            elif self._seeding.waking and period.window in self._seeding.waking:
                asked.idle.append(period.window)
            charges.append(
                Charge(budget.id, nano, budget.amount_nano, period.window.window, period.end_us, budget.hard)
            )
            counted.append(budget)
        if len(counted) != len(asked.budgets):
            asked.budgets = tuple(counted)
        return tuple(charges)

    def _most_listed(self, asked: Asked[R], routes: Sequence[R], currency: str) -> int:
        books, pins, most = asked.standing.snapshot.books, asked.standing.snapshot.pins, 0
        for route in routes:
            try:
                worst = worst_list_nano(
                    books,
                    pins,
                    asked.at_us,
                    asked.standing.payer,
                    route,
                    asked.input_tokens,
                    asked.output_tokens,
                    currency,
                )
            except NoPrice:  # let through only where no hard budget applies
                continue
            most = max(most, worst)
        return most


def _budgets_over(identity: Identity, snapshot: Snapshot) -> tuple[BudgetRow, ...]:
    """Every budget that the request draws on, and its team's wallet where that is prepaid."""
    budgets = snapshot.budgets.over(identity)
    if not identity.prepaid:
        return budgets
    return (*budgets, wallet_budget(snapshot.teams[identity.team_id]))


def _token_estimate(input_tokens: int, output_tokens: int, cap: OutputCap | None, scopes: Sequence[Scope]) -> int:
    """What token limits count until settlement. A cap that the caller did not name never makes a request too large by itself."""
    estimate = input_tokens + output_tokens
    if cap is None or cap.named:
        return estimate
    limits = [scope.limits.tokens_per_minute for scope in scopes if scope.limits.tokens_per_minute is not None]
    return max(input_tokens, min(estimate, *limits)) if limits else estimate
