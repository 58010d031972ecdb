"""The shared store as a request sees it: never slower than a timeout, never free of charge, whole again after a wipe.

Every process remembers the leases that it holds and the settlements that the database may not have yet. So

- a server that stops answering costs the first requests one timeout (`ValkeyStore.timeout_s`); from the second failure on,
  calls fail at once until a heartbeat succeeds. What a request then gets is the policy: `closed` refuses it, `open` lets
  it pass uncounted, `local_share` counts it in this process against its share of every limit;
- what was settled or released meanwhile is sent when the server is back; sending twice counts once;
- a server that lost its data (it names another world, or a sequence number lower than one already seen) begins a new world,
  which admits only after every process had time to register what it holds; the rest comes from the database (`seeding.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeVar
from uuid import UUID

from gateway.admission.claims import Answer, Base, BudgetWindow, Charge, Claim, Counters, Granted, Unshipped, View
from gateway.admission.memory import MemoryStore, steady_clock
from gateway.admission.share import share_of
from gateway.admission.store import EpochLost, Healing, StoreUnavailable
from gateway.admission.valkey import ValkeyStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
Policy = Literal["closed", "open", "local_share"]

HEARTBEAT_S: Final = 0.2
ALIVE_US: Final = 3_000_000
"""A process without a heartbeat for so long no longer counts when limits are shared out."""
FAILURES: Final = 2
"""So many failures in a row open the circuit."""
SHIPPED_AFTER_US: Final = 5_000_000
"""A settlement this old that the store no longer lists has been reconciled by another process."""


class SharedStore:
    """`LimitStore` over a server that may freeze, vanish or forget. `on_state` hears True and False as it comes and goes,
    `on_reset` that it came back empty or set back."""

    def __init__(
        self,
        remote: ValkeyStore,
        policy: Policy = "closed",
        *,
        on_state: Callable[[bool], None] | None = None,
        on_reset: Callable[[], None] | None = None,
    ) -> None:
        self._remote = remote
        self._policy = policy
        self._on_state = on_state or (lambda up: None)
        self._on_reset = on_reset or (lambda: None)
        self._clock = steady_clock()
        self._process = uuid.uuid4().hex
        self._processes = 1
        self._local = MemoryStore(self._clock)
        self._held: dict[UUID, tuple[Claim, int]] = {}
        self._settled: dict[UUID, tuple[Claim, Mapping[int, int], int]] = {}
        self._owed: dict[UUID, tuple[Claim, int, Mapping[int, int] | None]] = {}
        """Settlements, or releases (no amounts), that the server has not confirmed."""
        self._told = ""
        """The world that knows what was settled before it began."""
        self._failures = FAILURES
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def up(self) -> bool:
        return self._failures < FAILURES

    @property
    def processes(self) -> int:
        """How many processes shared the server's limits when it last answered."""
        return self._processes

    @property
    def owes(self) -> int:
        """How many settlements and releases the server has not confirmed."""
        return len(self._owed)

    async def start(self) -> None:
        """Join the server's world if it answers, and wait until that admits; one that does not answer leaves `up` False."""
        self._on_state(False)
        remaining_us = await self._beat()
        if remaining_us:
            await asyncio.sleep(remaining_us / 1e6)
        self._task = asyncio.create_task(self._beat_forever(), name="limit store heartbeat")

    async def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
        if self.up:
            try:
                await self._pay()
            except StoreUnavailable as error:
                logger.warning("the limit store left before %d settlements reached it: %s", len(self._owed), error)
        await self._remote.stop()

    # ---- what requests call ----

    async def admit(self, claim: Claim) -> Answer:
        return await self._take(claim, lambda: self._remote.admit(claim), new=True)

    async def amend(self, claim: Claim, tokens: int, charges: Sequence[Charge]) -> Answer:
        amended = Claim(claim.request_id, claim.scopes, tokens, tuple(charges), claim.ttl_us)
        return await self._take(amended, lambda: self._remote.amend(claim, tokens, charges), new=False)

    async def settle(self, claim: Claim, tokens: int, amounts: Mapping[int, int]) -> bool:
        """Remembered here whether or not the server hears it now, so it never raises."""
        self._held.pop(claim.request_id, None)
        if any(amounts.values()):
            self._settled[claim.request_id] = claim, amounts, self._clock()
        return await self._finish(claim, tokens, amounts)

    async def release(self, claim: Claim) -> bool:
        self._held.pop(claim.request_id, None)
        return await self._finish(claim, 0, None)

    async def renew(self, claims: Iterable[Claim]) -> None:
        """Also forgets what is held but not among `claims` any more: leases that were dropped, not finished."""
        claims = list(claims)
        live, now_us = {claim.request_id for claim in claims}, self._clock()
        for request_id, (claim, admitted_us) in list(self._held.items()):
            if request_id not in live and now_us - admitted_us > claim.ttl_us:
                del self._held[request_id]
        if not self.up:
            await self._local.renew(claims)
            return
        await self._remote.renew(claims)

    async def view(self, scope: str, windows: Sequence[BudgetWindow]) -> View:
        return await self._read(lambda store: store.view(scope, windows))

    async def unshipped(self, windows: Collection[BudgetWindow], limit: int) -> Unshipped:
        answer = await self._read(lambda store: store.unshipped(windows, limit))
        if self.up and answer.complete:
            self._forget_shipped(answer)
        return answer

    async def reconcile(self, bases: Mapping[BudgetWindow, Base], shipped: Collection[UUID]) -> bool:
        done = await self._read(lambda store: store.reconcile(bases, shipped))
        if done:
            for request_id in shipped:
                self._settled.pop(request_id, None)
        return done

    # ---- how ----

    async def _take(self, claim: Claim, ask: Callable[[], Awaitable[Answer]], *, new: bool) -> Answer:
        if not self.up:
            return await self._without(claim, StoreUnavailable("the limit store does not answer"))
        try:
            answer = await ask()
        except (EpochLost, Healing) as error:
            self._wake.set()
            return await self._without(claim, error)
        except StoreUnavailable as error:
            await self._failed(error)
            try:
                return await self._without(claim, error)
            except StoreUnavailable:
                if new:  # it may have been counted all the same
                    self._owed[claim.request_id] = claim, 0, None
                raise
        except asyncio.CancelledError:
            if new:
                self._owed[claim.request_id] = claim, 0, None
            raise
        self._failures = 0
        if isinstance(answer, Granted):
            self._held[claim.request_id] = claim, self._clock()
        return answer

    async def _without(self, claim: Claim, error: StoreUnavailable) -> Answer:
        """What the policy says to a request that the server cannot decide."""
        answer: Answer
        if self._policy == "closed":
            raise error
        if self._policy == "open":
            answer = Granted(tuple(Counters() for _ in claim.scopes))
        else:
            answer = await self._local.admit(share_of(claim, self._processes, self._local.base_nano))
        if isinstance(answer, Granted):
            self._held[claim.request_id] = claim, self._clock()
        return answer

    async def _finish(self, claim: Claim, tokens: int, amounts: Mapping[int, int] | None) -> bool:
        first = True
        if self._policy == "local_share":
            if amounts is None:
                await self._local.release(claim)
            else:
                await self._local.settle(claim, tokens, amounts)
        self._owed[claim.request_id] = claim, tokens, amounts
        if self.up:
            try:
                first = await self._send(claim, tokens, amounts)
                self._failures = 0
                self._owed.pop(claim.request_id, None)
            except (EpochLost, Healing):
                self._wake.set()
            except StoreUnavailable as error:
                await self._failed(error)
        return first

    async def _send(self, claim: Claim, tokens: int, amounts: Mapping[int, int] | None) -> bool:
        if amounts is None:
            return await self._remote.release(claim)
        return await self._remote.settle(claim, tokens, amounts)

    async def _read(self, ask: Callable[[ValkeyStore | MemoryStore], Awaitable[T]]) -> T:
        if self.up:
            try:
                answer = await ask(self._remote)
                self._failures = 0
                return answer
            except (EpochLost, Healing):
                self._wake.set()
                raise
            except StoreUnavailable as error:
                await self._failed(error)
        if not self.up and self._policy == "local_share":
            return await ask(self._local)
        raise StoreUnavailable("the limit store does not answer")

    async def _failed(self, error: StoreUnavailable, failures: int = 1) -> None:
        was_up = self.up
        self._failures += failures
        if not was_up or self.up:
            return
        logger.warning("limits are now decided by the policy %r: %s", self._policy, error)
        self._on_state(False)
        if self._policy == "local_share":
            self._local = MemoryStore(self._clock)
            settled = [(claim, amounts) for claim, amounts, _ in self._settled.values()]
            await self._local.register(list(self._held.values()), settled)

    def _forget_shipped(self, listed: Unshipped) -> None:
        before_us = self._clock() - SHIPPED_AFTER_US
        for request_id, (_, _, settled_us) in list(self._settled.items()):
            if settled_us > before_us:
                break
            if request_id not in listed.settled and request_id not in self._owed:
                del self._settled[request_id]

    # ---- the heartbeat ----

    async def _beat_forever(self) -> None:
        while not self._stopped:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), HEARTBEAT_S)
            self._wake.clear()
            try:
                await self._beat()
            except Exception:
                logger.exception("the limit store's heartbeat failed")

    async def _beat(self) -> int:
        """Notice that the server is away, back or another one, and tell it what it missed; us until it admits."""
        try:
            if not self._remote.joined:
                await self._join()
            try:
                processes, remaining_us = await self._remote.heartbeat(self._process, ALIVE_US)
            except EpochLost:
                await self._join()
                processes, remaining_us = await self._remote.heartbeat(self._process, ALIVE_US)
            if not self.up:
                await self._register()
            await self._pay()
        except StoreUnavailable as error:
            await self._failed(error, FAILURES)
            return 0
        self._processes = processes
        if not self.up:
            logger.info("the limit store answers")
            self._on_state(True)
        self._failures = 0
        return remaining_us

    async def _join(self) -> None:
        known = self._remote.joined
        if await self._remote.join():
            if known:
                self._on_reset()
            logger.warning("joined world %s of the limit store; registering what is held", self._remote.epoch)
            await self._register()

    async def _register(self) -> None:
        """What is held; and to a new world, once, what was settled. A world that knew it may have shipped it since."""
        world = self._remote.epoch
        settled = [] if world == self._told else [(claim, amounts) for claim, amounts, _ in self._settled.values()]
        await self._remote.register(list(self._held.values()), settled)
        self._told = world

    async def _pay(self) -> None:
        for request_id, (claim, tokens, amounts) in list(self._owed.items()):
            await self._send(claim, tokens, amounts)
            self._owed.pop(request_id, None)
