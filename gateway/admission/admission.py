"""The one step that every request which can cost money passes: all its limits and budgets at once, or nothing.

A request is priced at its worst case, reserved, and later settled at its actual cost; see design.md "Reserve, then settle".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID
from weakref import ref

from sqlalchemy.ext.asyncio import AsyncEngine

from billing.budgets import BudgetRow
from billing.exchange import RateBook
from billing.rating import Rated
from billing.usage import Usage
from gateway.admission import answers
from gateway.admission.asked import Asked
from gateway.admission.asking import Asking
from gateway.admission.claims import Answer, BudgetWindow, Charge, Claim, Granted, Refused, Unseeded
from gateway.admission.lease import Lease, actual_nano
from gateway.admission.listener import BudgetListener
from gateway.admission.memory import MemoryStore
from gateway.admission.reservation import OutputCap, PricedRoute, clamp
from gateway.admission.seeding import UNHEARD, BudgetCatalog, Seeding
from gateway.admission.store import LimitStore, StoreUnavailable
from gateway.admission.wallet import WALLET
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
_UNASKED: Final = Unseeded(())


class CatalogView(Protocol):
    @property
    def snapshot(self) -> Snapshot: ...


class SettingsView(Protocol):
    @property
    def limits(self) -> LimitSettings: ...


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
        listener: BudgetListener = UNHEARD,
    ) -> None:
        """`inheriting`: whether journals of dead processes are still on their way into the database."""
        self.settings = settings
        self.store = store
        self._memory = store if type(store) is MemoryStore else None
        self._listener = listener
        self._catalog = catalog
        self._ttl_us = int(lease_ttl_s * 1_000_000)
        self._leases: dict[int, ref[Lease[Any]]] = {}
        self.seeding = Seeding(database, store, BudgetCatalog(self._budget, self._rates, listener), inheriting)
        self._asking = Asking(self.seeding, self._ttl_us)
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
        cap = clamp(output_cap, model, self.settings.limits.default_output_reserve)
        asked = self._asking.ask(identity, snapshot, request_id, at_us, input_tokens, cap, n, candidates, model)
        hard = asked.standing.hard
        if not asked.scopes and not asked.budgets:
            return self._lease(asked, Claim(request_id, (), asked.tokens, (), self._ttl_us), cap, n, hard, b"")
        if hard and not self.seeding.current:
            await self._inherit()
        claim = self._asking.claim(asked, asked.routes, asked.costs)
        if asked.idle:
            await self._wake(asked.idle)
        while True:
            answer: Answer = _UNASKED if self._memory is None else self._memory.admit_now(claim)
            if isinstance(answer, Unseeded):
                claim, answer = await self._decide(asked, claim)
            if isinstance(answer, Granted):
                break
            cheaper = answer.budget_id is not None and bool(asked.costs) and asked.costs[0] < max(asked.costs)
            if not cheaper:
                raise self._refusal(asked, claim, answer)
            # The dearer fallbacks do not fit; the first route may.
            kept = [index for index, cost in enumerate(asked.costs) if cost <= asked.costs[0]]
            asked.routes = [asked.routes[index] for index in kept]
            asked.costs = [asked.costs[index] for index in kept]
            claim = self._asking.claim(asked, asked.routes, asked.costs)
        return self._lease(asked, claim, cap, n, hard, answers.limit_lines(claim.scopes, answer.counters))

    async def amend(self, lease: Lease[R], route: R) -> bool:
        """Make the reservation cover `route` as well; False, and nothing changed, when it does not fit or cannot be charged."""
        asked: Asked[R] = self._asking.ask(
            lease.identity, lease.snapshot, lease.request_id, lease.at_us, lease.reserved.input, None, 1, [], None
        )
        asked.output_tokens = lease.reserved.output
        try:
            self._asking.price(asked, [route])
            if not lease.claim.charges:
                return True
            charges = self._asking.charges(asked, [route], asked.costs)
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
        if not self._finish(lease):
            return
        amounts = {}
        for charge, budget in zip(lease.claim.charges, lease.budgets, strict=True):
            amounts[charge.budget_id] = actual_nano(lease, budget, charge.amount_nano, rated)
        if self._memory is not None:
            self._memory.settle_now(lease.claim, tokens, amounts)
        else:
            await self.store.settle(lease.claim, tokens, amounts)

    async def release(self, lease: Lease[R]) -> None:
        """Give everything back: the request reached no provider."""
        if self._finish(lease):
            await self.store.release(lease.claim)

    def _finish(self, lease: Lease[R]) -> bool:
        """Whether there is something to give back, the first time."""
        if lease.finished:
            return False
        lease.finished = True
        return self._leases.pop(lease.request_id.int, None) is not None

    # ---- the store ----

    async def _decide(self, asked: Asked[R], claim: Claim) -> tuple[Claim, Granted | Refused]:
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
        """Have periods counted anew: money may have come or gone since their last use. What cannot be read stays as it is."""
        try:
            await self.seeding.wake(windows)
        except StoreUnavailable as error:
            logger.info("a budget is not brought in line before its first use: %s", error)

    async def _seed(self, asked: Asked[R], claim: Claim, windows: Sequence[BudgetWindow]) -> Claim:
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

    def _refusal(self, asked: Asked[R], claim: Claim, answer: Refused) -> ApiError:
        if answer.budget_id is None:
            return answers.refused(claim, answer)
        budget = next(budget for budget in asked.budgets if budget.id == answer.budget_id)
        charge = next(charge for charge in claim.charges if charge.budget_id == answer.budget_id)
        if budget.scope != WALLET:
            window = BudgetWindow(charge.budget_id, charge.window)
            self._listener.refused(budget, window, answer.available_nano, charge.amount_nano)
        headers = answers.limit_headers(claim.scopes, answer.counters)
        return answers.over_budget(budget, answer, charge.amount_nano, charge.ends_us, headers)

    def _lease(self, asked: Asked[R], claim: Claim, cap: OutputCap, n: int, hard: bool, lines: bytes) -> Lease[R]:
        send = cap.tokens if hard or cap.named else None
        lease = Lease(
            asked.request_id,
            asked.standing.identity,
            lines,
            send,
            Usage(input=asked.input_tokens, output=cap.tokens * n),
            tuple(asked.routes),
            claim,
            asked.standing.snapshot,
            asked.at_us,
            asked.budgets,
        )
        if claim.scopes or claim.charges:
            self._leases[asked.request_id.int] = ref(lease)
        return lease

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_us / 3e6)
            try:
                await self.store.renew([lease.claim for lease in self._held()])
            except StoreUnavailable as error:
                logger.debug("leases are not renewed: %s", error)
            except Exception:
                logger.exception("the renewal of leases failed")

    def _held(self) -> list[Lease[Any]]:
        """The leases that somebody still holds on to; the others are forgotten."""
        held = []
        for request_id, of in list(self._leases.items()):
            lease = of()
            if lease is None:
                del self._leases[request_id]
            else:
                held.append(lease)
        return held

    # ---- the catalog, for seeding ----

    def _budget(self, budget_id: int) -> BudgetRow | None:
        return self._catalog.snapshot.budgets.by_id.get(budget_id)

    def _rates(self) -> RateBook:
        return self._catalog.snapshot.books.rates


def _larger(charge: Charge, held: Sequence[Charge]) -> Charge:
    """`charge`, or what is held in the same budget period already where that is more."""
    for other in held:
        if (other.budget_id, other.window) == (
            charge.budget_id,
            charge.window,
        ) and other.amount_nano > charge.amount_nano:
            return other
    return charge
