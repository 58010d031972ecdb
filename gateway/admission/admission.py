"""The one step that every request which can cost money passes: all its limits and budgets at once, or nothing.

A request is priced at its worst case, reserved, and later settled at its actual cost; see design.md "Reserve, then settle".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import BudgetRow
from billing.errors import NoPrice, NoRate, NoTerms
from billing.exchange import RateBook
from billing.rating import Payer, Rated
from billing.spending import MOST
from billing.usage import Usage
from gateway.admission import answers
from gateway.admission.claims import BudgetWindow, Charge, Claim, Granted, Refused, Scope, Unseeded
from gateway.admission.limits import UNLIMITED
from gateway.admission.periods import Periods
from gateway.admission.reservation import OutputCap, PricedRoute, Reserve, listed_nano, output_cap, worst_list_nano
from gateway.admission.seeding import BudgetCatalog, OnSpent, Seeding, unheard
from gateway.admission.store import LimitStore, StoreUnavailable
from gateway.admission.wallet import WALLET, wallet_budget
from gateway.errors import ApiError, model_not_allowed, unavailable

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.catalog import Snapshot
    from gateway.settings import LimitSettings, ModelSettings

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=PricedRoute)

LEASE_TTL_S: Final = 60.0
"""How long the reservations of a process that died stay; a living one renews them three times as often."""
TRIES: Final = 4
USED_US: Final = 10_000_000
"""How often a budget period in use is reported as such."""


class CatalogView(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...


class SettingsView(Protocol):
    @property
    def limits(self) -> LimitSettings: ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class Lease(Generic[R]):
    """What one admitted request holds. A lease that nobody holds on to is no longer renewed and expires.

    `output_cap` is the cap per choice to send upstream, the one that was reserved; None: the caller named none, and need not.
    `routes` are the candidates that the reservation covers, in their order: another one needs `Admission.amend` first.
    `reserved` is what the journal writes.
    """

    request_id: UUID
    identity: Identity
    headers: list[tuple[bytes, bytes]]
    output_cap: int | None
    reserved: Usage
    routes: tuple[R, ...]
    claim: Claim
    snapshot: Snapshot
    at_us: int
    budgets: tuple[BudgetRow, ...] = ()
    finished: bool = field(default=False)


class _Standing(NamedTuple):
    """What every request of one key has in common under one snapshot."""

    identity: Identity
    snapshot: Snapshot
    payer: Payer
    scopes: tuple[Scope, ...]
    budgets: tuple[BudgetRow, ...]
    hard: bool


@dataclass(slots=True)
class _Asked(Generic[R]):
    """One request, as it is priced and claimed."""

    standing: _Standing
    request_id: UUID
    at_us: int
    model_name: str
    input_tokens: int
    output_tokens: int
    """All choices together."""
    tokens: int
    scopes: tuple[Scope, ...]
    budgets: tuple[BudgetRow, ...]
    routes: list[R]
    costs: list[int]
    """What each route can settle at, at most, in nano of the payer's currency."""
    idle: list[BudgetWindow] = field(default_factory=list)
    """Wallets that nobody has drawn on for a while: what the store knows of them may be old."""


class Admission:
    """What the door calls. `settings` may be replaced on a reload; only its `limits` are read."""

    def __init__(
        self,
        catalog: CatalogView,
        store: LimitStore,
        settings: SettingsView,
        database: AsyncEngine,
        *,
        lease_ttl_s: float = LEASE_TTL_S,
        inheriting: Callable[[], bool] = lambda: False,
        on_spent: OnSpent = unheard,
    ) -> None:
        """`inheriting`: whether journals of dead processes are still on their way into the database. `on_spent` hears the
        database's sum of each budget period in use, once a second."""
        self.settings = settings
        self.store = store
        self._catalog = catalog
        self._ttl_us = int(lease_ttl_s * 1_000_000)
        self._periods = Periods()
        self._reserve = Reserve()
        self._leases: WeakValueDictionary[int, Lease[PricedRoute]] = WeakValueDictionary()
        self._standings: dict[str, _Standing] = {}
        self._standing_in: Snapshot | None = None
        self.seeding = Seeding(database, store, BudgetCatalog(self._budget, self._rates, on_spent), inheriting)
        self._renewal: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.store.start()
        self.seeding.start()
        self._renewal = asyncio.create_task(self._renew_forever(), name="lease renewal")

    async def stop(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
            self._renewal = None
        await self.seeding.stop()
        await self.store.stop()

    # ---- admit ----

    async def admit(
        self,
        identity: Identity,
        *,
        request_id: UUID,
        input_tokens: int,
        output_cap: int | None,
        n: int,
        candidates: Sequence[R],
        at_us: int,
        model: ModelSettings | None = None,
    ) -> Lease[R]:
        """Reserve the request's worst case on the dearest candidate. `output_cap` is the caller's own, per choice; `n` choices.

        `at_us` is the request id's time: it decides the budget period. Raises `ApiError`: 403 for a model that the key may not
        use or that cannot be charged, 402 for a hard budget without room, 429 with a true `retry-after`, 503 while the limits
        cannot be checked.
        """
        if model is not None and identity.models is not None and model.name not in identity.models:
            raise model_not_allowed(model.name)
        try:
            snapshot = self._catalog.snapshot
        except Exception as error:
            raise unavailable("The gateway has not read its catalog yet; try again.", retry_after_s=1.0) from error
        cap = _cap(output_cap, model, self.settings.limits.default_output_reserve)
        asked = self._ask(identity, snapshot, request_id, at_us, input_tokens, cap, n, candidates, model)
        hard = asked.standing.hard
        if not asked.scopes and not asked.budgets:
            return self._lease(asked, Claim(request_id, (), asked.tokens, (), self._ttl_us), cap, n, hard, [])
        if hard and not self.seeding.current:
            await self._inherit()
        claim = self._claim(asked, asked.routes, asked.costs)
        if asked.idle:
            await self._wake(asked.idle)
        while True:
            claim, answer = await self._decide(asked, claim)
            if isinstance(answer, Granted):
                break
            cheaper = answer.budget_id is not None and asked.costs[0] < max(asked.costs)
            if not cheaper:
                raise self._refusal(asked, claim, answer)
            # The dearer fallbacks do not fit; the first route may.
            kept = [index for index, cost in enumerate(asked.costs) if cost <= asked.costs[0]]
            asked.routes = [asked.routes[index] for index in kept]
            asked.costs = [asked.costs[index] for index in kept]
            claim = self._claim(asked, asked.routes, asked.costs)
        headers = answers.limit_headers(claim.scopes, answer.counters)
        return self._lease(asked, claim, cap, n, hard, headers)

    async def amend(self, lease: Lease[R], route: R) -> bool:
        """Make the reservation cover `route` as well; False, and nothing changed, when it does not fit or cannot be charged."""
        asked: _Asked[R] = self._ask(
            lease.identity, lease.snapshot, lease.request_id, lease.at_us, lease.reserved.input, None, 1, [], None
        )
        asked.output_tokens = lease.reserved.output
        try:
            self._price(asked, [route])
            if not lease.claim.charges:
                return True
            charges = self._charges(asked, [route], asked.costs)
            charges = tuple(_larger(charge, lease.claim.charges) for charge in charges)
            answer = await self.store.amend(lease.claim, lease.claim.tokens, charges)
        except (ApiError, StoreUnavailable):
            return False
        if not isinstance(answer, Granted):
            return False
        claim = lease.claim
        lease.claim = Claim(claim.request_id, claim.scopes, claim.tokens, charges, claim.ttl_us)
        lease.budgets = asked.budgets
        lease.routes = (*lease.routes, route)
        return True

    # ---- settle ----

    async def settle(self, lease: Lease[R], *, rated: Rated | None, tokens: int) -> None:
        """Post what the request cost and used, and give the rest back. Once per lease; the caller shields it.

        What has no amount (`rated` is None: it could not be rated) posts its reservation, until its row is written.
        """
        if lease.finished:
            return
        lease.finished = True
        if not lease.claim.scopes and not lease.claim.charges:
            return
        amounts = {}
        for charge, budget in zip(lease.claim.charges, lease.budgets, strict=True):
            amounts[charge.budget_id] = self._actual_nano(lease, budget, charge.amount_nano, rated)
        await self.store.settle(lease.claim, tokens, amounts)

    async def release(self, lease: Lease[R]) -> None:
        """Give everything back: the request reached no provider."""
        if lease.finished:
            return
        lease.finished = True
        if lease.claim.scopes or lease.claim.charges:
            await self.store.release(lease.claim)

    def _actual_nano(self, lease: Lease[R], budget: BudgetRow, reserved_nano: int, rated: Rated | None) -> int:
        """What the request counts in this budget. Without an amount it is what was reserved: it may have cost that."""
        if rated is None:
            return reserved_nano
        if rated.overflow:
            return 2 * MOST if budget.scope == WALLET else MOST  # no balance makes up for it, and no limit
        if budget.scope != "all":
            settled = rated.settled
            if settled is not None and settled.currency == budget.currency:
                return settled.nano
            return max(reserved_nano, sum(line.settled_nano or 0 for line in rated.lines))
        snapshot = lease.snapshot
        try:
            listed = listed_nano(snapshot.books, snapshot.pins, lease.at_us, rated, budget.currency)
        except NoRate as error:
            logger.warning("budget %d cannot count request %s: %s", budget.id, lease.request_id, error)
            listed = None
        return reserved_nano if listed is None else listed

    # ---- what is asked for ----

    def _ask(
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
    ) -> _Asked[R]:
        output_tokens = cap.tokens * n if cap is not None else 0
        standing = self._standings.get(identity.key_id)
        if standing is None or standing.identity is not identity or standing.snapshot is not snapshot:
            standing = self._stand(identity, snapshot)
        scopes = standing.scopes
        if model is not None and identity.model_limits:
            limits = identity.model_limits.get(model.name)
            if limits is not None and limits != UNLIMITED:
                scopes = (*scopes, Scope(f"{identity.key_id}/{model.name}", limits))
        asked: _Asked[R] = _Asked(
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
            self._price(asked, candidates)
        return asked

    def _stand(self, identity: Identity, snapshot: Snapshot) -> _Standing:
        if self._standing_in is not snapshot:
            self._standing_in = snapshot
            self._standings.clear()
        budgets = _budgets_over(identity, snapshot)
        standing = self._standings[identity.key_id] = _Standing(
            identity,
            snapshot,
            Payer(identity.team_id, identity.settlement_currency),
            (Scope(identity.key_id, identity.limits),) if identity.limits != UNLIMITED else (),
            budgets,
            any(budget.hard for budget in budgets),
        )
        return standing

    def _price(self, asked: _Asked[R], candidates: Sequence[R]) -> None:
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
            except NoPrice:
                if must_be_priced:
                    refusal = refusal or answers.unpriced(asked.model_name)
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

    def _claim(self, asked: _Asked[R], routes: Sequence[R], costs: Sequence[int]) -> Claim:
        return Claim(asked.request_id, asked.scopes, asked.tokens, self._charges(asked, routes, costs), self._ttl_us)

    def _charges(self, asked: _Asked[R], routes: Sequence[R], costs: Sequence[int]) -> tuple[Charge, ...]:
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
                if budget.scope == WALLET and not self.seeding.follows(period.window):
                    asked.idle.append(period.window)
                self.seeding.used(period.window)
            charges.append(
                Charge(budget.id, nano, budget.amount_nano, period.window.window, period.end_us, budget.hard)
            )
            counted.append(budget)
        if len(counted) != len(asked.budgets):
            asked.budgets = tuple(counted)
        return tuple(charges)

    def _most_listed(self, asked: _Asked[R], routes: Sequence[R], currency: str) -> int:
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

    # ---- the store ----

    async def _decide(self, asked: _Asked[R], claim: Claim) -> tuple[Claim, Granted | Refused]:
        for _ in range(TRIES):
            try:
                answer = await self.store.admit(claim)
            except StoreUnavailable as error:
                raise answers.store_unavailable(error) from error
            if not isinstance(answer, Unseeded):
                return claim, answer
            claim = await self._seed(asked, claim, answer.windows)
        raise answers.store_unavailable(StoreUnavailable("the budgets are still being counted"))

    async def _inherit(self) -> None:
        """Nothing hard is counted before what dead processes spent is in the sums. Raises `ApiError` 503."""
        try:
            await self.seeding.inherit()
        except StoreUnavailable as error:
            raise answers.store_unavailable(error) from error

    async def _wake(self, windows: list[BudgetWindow]) -> None:
        """Have wallets counted anew: money may have come in since they were last used. What cannot be read stays as it is."""
        try:
            await self.seeding.seed(windows)
        except StoreUnavailable as error:
            logger.info("a wallet is not brought in line before its first use: %s", error)

    async def _seed(self, asked: _Asked[R], claim: Claim, windows: Sequence[BudgetWindow]) -> Claim:
        """Have the budgets counted. Soft ones that cannot be are left out of the claim; hard ones refuse the request."""
        failure: StoreUnavailable | None = None
        try:
            await self.seeding.seed(windows)
        except StoreUnavailable as error:
            failure = error
        without: set[int] = set()
        for window in windows:
            reason = self.seeding.uncountable.get(window)
            if failure is None and reason is None:
                continue
            without.add(window.budget_id)
            if any(budget.id == window.budget_id and budget.hard for budget in asked.budgets):
                raise (
                    answers.uncountable(reason)
                    if reason
                    else answers.store_unavailable(failure or StoreUnavailable(""))
                )
        if not without:
            return claim
        asked.budgets = tuple(budget for budget in asked.budgets if budget.id not in without)
        charges = tuple(charge for charge in claim.charges if charge.budget_id not in without)
        return Claim(claim.request_id, claim.scopes, claim.tokens, charges, claim.ttl_us)

    def _refusal(self, asked: _Asked[R], claim: Claim, answer: Refused) -> ApiError:
        if answer.budget_id is None:
            return answers.refused(claim, answer)
        budget = next(budget for budget in asked.budgets if budget.id == answer.budget_id)
        charge = next(charge for charge in claim.charges if charge.budget_id == answer.budget_id)
        headers = answers.limit_headers(claim.scopes, answer.counters)
        return answers.over_budget(budget, answer, charge.amount_nano, charge.ends_us, headers)

    def _lease(
        self, asked: _Asked[R], claim: Claim, cap: OutputCap, n: int, hard: bool, headers: list[tuple[bytes, bytes]]
    ) -> Lease[R]:
        send = cap.tokens if hard or cap.named else None
        lease = Lease(
            asked.request_id,
            asked.standing.identity,
            headers,
            send,
            Usage(input=asked.input_tokens, output=cap.tokens * n),
            tuple(asked.routes),
            claim,
            asked.standing.snapshot,
            asked.at_us,
            asked.budgets,
        )
        if claim.scopes or claim.charges:
            self._leases[asked.request_id.int] = lease  # type: ignore[assignment]
        return lease

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_us / 3e6)
            try:
                await self.store.renew([lease.claim for lease in self._leases.values() if not lease.finished])
            except StoreUnavailable as error:
                logger.debug("leases are not renewed: %s", error)
            except Exception:
                logger.exception("the renewal of leases failed")

    # ---- the catalog, for seeding ----

    def _budget(self, budget_id: int) -> BudgetRow | None:
        return self._catalog.snapshot.budgets.by_id.get(budget_id)

    def _rates(self) -> RateBook:
        return self._catalog.snapshot.books.rates


_cap = output_cap


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


def _larger(charge: Charge, held: Sequence[Charge]) -> Charge:
    """`charge`, or what is held in the same budget period already where that is more."""
    for other in held:
        if (other.budget_id, other.window) == (
            charge.budget_id,
            charge.window,
        ) and other.amount_nano > charge.amount_nano:
            return other
    return charge
