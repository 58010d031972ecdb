"""Limits on Valkey or Redis, for many processes: one Lua script per operation, one round trip, the server's clock.

This class speaks to a server that answers. What to do while it does not, and how to heal a wiped one, is `shared.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final
from uuid import UUID

import msgspec

from billing.money import NANO
from gateway.admission.claims import (
    Answer,
    Base,
    BudgetState,
    BudgetWindow,
    Charge,
    Claim,
    Counters,
    Granted,
    Refused,
    Scope,
    Unseeded,
    Unshipped,
    View,
)
from gateway.admission.memory import PAST_PERIOD_US
from gateway.admission.pipeline import Pipeline, Unreachable
from gateway.admission.resp import ErrorReply, Word, command, word
from gateway.admission.store import AlreadyFinished, EpochLost, Healing, StoreUnavailable

PREFIX: Final = "{metergate}"
"""The hash tag puts every key into one slot of a cluster, as one script's keys must be."""
HEAL_US: Final = 1_500_000
"""After a wipe: how long every process has to notice (heartbeats are 200 ms apart) and register what it holds."""


class _Script:
    """One operation: the shared head and its own text. Sent by hash; in full to a server that does not know it."""

    def __init__(self, *parts: str) -> None:
        folder = files("gateway.admission") / "scripts"
        self.text = "\n".join((folder / f"{part}.lua").read_text() for part in parts)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_BEGIN: Final = _Script("begin")
_ADMIT: Final = _Script("head", "minute", "correct", "expire", "admit")
_FINISH: Final = _Script("head", "minute", "correct", "finish")
_RENEW: Final = _Script("head", "lost", "renew")
_REGISTER: Final = _Script("head", "lost", "minute", "correct", "register")
_UNSHIPPED: Final = _Script("head", "lost", "unshipped")
_RECONCILE: Final = _Script("head", "lost", "reconcile")
_VIEW: Final = _Script("head", "lost", "minute", "expire", "view")
_HEARTBEAT: Final = _Script("head", "lost", "expire", "heartbeat")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class ValkeyStore:
    """`LimitStore` on one server or one cluster. Raises `StoreUnavailable` for every failure to decide.

    `clock` replaces the server's time by a simulated one; `heal_us` is how long a new world waits before it admits.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = PREFIX,
        timeout_s: float = 0.2,
        heal_us: int = HEAL_US,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._pipeline = Pipeline(url, timeout_s)
        self._prefix = prefix
        self._keys: tuple[str, ...] = ()
        self._heads: dict[str, bytes] = {}
        """What every call of a script in this world begins with."""
        self._heal_us = heal_us
        self._clock = clock
        self.epoch = ""
        self._seen = 0

    async def start(self) -> None:
        await self.join()

    async def stop(self) -> None:
        await self._pipeline.aclose()

    @property
    def joined(self) -> bool:
        return bool(self.epoch)

    async def join(self) -> bool:
        """Take part in the server's present world, or begin one. True when it is another than the one known before."""
        fresh = uuid.uuid4().hex
        now_us = self._clock() if self._clock else -1
        keys = (f"{self._prefix}:epoch", f"{self._prefix}:{self.epoch}")
        asked = (self.epoch, self._seen, fresh, self._heal_us, now_us, f"{self._prefix}:")
        call = command("EVALSHA", _BEGIN.sha, len(keys), *keys, *asked)
        epoch, sequence = await self._run(call, lambda: command("EVAL", _BEGIN.text, len(keys), *keys, *asked))
        changed: bool = epoch.decode() != self.epoch
        self._seen = sequence if changed else max(self._seen, sequence)
        self.epoch = epoch.decode()
        world = f"{self._prefix}:{self.epoch}"
        self._keys = (world, f"{world}:expiry", f"{world}:unshipped", f"{world}:periods", f"{self._prefix}:replicas")
        self._heads = {}
        return changed

    async def admit(self, claim: Claim) -> Answer:
        return await self._ask(claim, claim.tokens, claim.charges, 0)

    async def amend(self, claim: Claim, tokens: int, charges: Sequence[Charge]) -> Answer:
        return await self._ask(claim, tokens, charges, 1)

    async def _ask(self, claim: Claim, tokens: int, charges: Sequence[Charge], amend: int) -> Answer:
        asked: list[str | int] = []
        for charge in charges:
            asked += (
                _field(charge),
                *divmod(charge.amount_nano, NANO),
                *divmod(charge.limit_nano, NANO),
                int(charge.hard),
            )
        answer = await self._call(_ADMIT, _lease(claim), tokens, claim.ttl_us, _scopes(claim.scopes), asked, amend)
        status = answer[0]
        if status == "granted":
            return Granted(tuple(Counters(*counters) for counters in answer[2]))
        if status == "unseeded":
            return Unseeded(tuple(_window(field) for field in answer[2]))
        if status == "finished":
            raise AlreadyFinished(f"request {claim.request_id} was settled or released before it asked to be admitted")
        _, _, by, counters, wait_us, scope, field, units, nano = answer
        return Refused(
            by,
            tuple(Counters(*each) for each in counters),
            None if wait_us < 0 else wait_us,
            scope,
            _window(field).budget_id if field else None,
            units * NANO + nano,
        )

    async def settle(self, claim: Claim, tokens: int, amounts: Mapping[int, int]) -> bool:
        answer = await self._call(_FINISH, _lease(claim), 1, tokens, _postings(claim, amounts))
        return bool(answer[2])

    async def release(self, claim: Claim) -> bool:
        answer = await self._call(_FINISH, _lease(claim), 0, 0, [])
        return bool(answer[2])

    async def renew(self, claims: Iterable[Claim]) -> None:
        leases: list[str | int] = []
        for claim in claims:
            leases += _lease(claim), claim.ttl_us
        for start in range(0, len(leases), 1000):
            await self._call(_RENEW, leases[start : start + 1000])

    async def register(
        self, held: Sequence[tuple[Claim, int]], settled: Sequence[tuple[Claim, Mapping[int, int]]]
    ) -> None:
        """Count, unchecked, what this process knows of: leases (with the us of their admission) and settlements."""
        leases = []
        for claim, admitted_us in held:
            reserved = {charge.budget_id: charge.amount_nano for charge in claim.charges}
            scopes, postings = _scopes(claim.scopes), _postings(claim, reserved)
            leases.append((_lease(claim), claim.tokens, admitted_us, claim.ttl_us, scopes, postings))
        posted = [(_lease(claim), _postings(claim, amounts)) for claim, amounts in settled if any(amounts.values())]
        for start in range(0, max(len(leases), len(posted)), 200):
            await self._call(_REGISTER, leases[start : start + 200], posted[start : start + 200])

    async def unshipped(self, windows: Collection[BudgetWindow], limit: int) -> Unshipped:
        answer = await self._call(_UNSHIPPED, limit, [_field(window) for window in windows])
        versions = {_window(field): version for field, version in _chunks(answer[2], 2)}
        settled = {}
        for request_id, postings in _chunks(answer[3], 2):
            amounts = {_window(field): units * NANO + nano for field, units, nano in _chunks(postings, 3)}
            settled[UUID(hex=request_id)] = amounts
        return Unshipped(settled, versions, answer[4])

    async def reconcile(self, bases: Mapping[BudgetWindow, Base], shipped: Collection[UUID]) -> bool:
        flat: list[str | int] = []
        for window, base in bases.items():
            end_us = window.bounds()[1]
            forget_us = 0 if end_us is None else end_us + PAST_PERIOD_US
            flat += _field(window), *divmod(base.nano, NANO), base.version, forget_us
        answer = await self._call(_RECONCILE, flat, [request_id.hex for request_id in shipped])
        return bool(answer[2])

    async def view(self, scope: str, windows: Sequence[BudgetWindow]) -> View:
        answer = await self._call(_VIEW, f"k:{scope}", [_field(window) for window in windows])
        states = {}
        for window, (version, bu, bn, uu, un, ru, rn) in zip(windows, answer[3], strict=True):
            states[window] = BudgetState(version > 0, (bu + uu) * NANO + bn + un, ru * NANO + rn)
        return View(Counters(*answer[2]), states)

    async def heartbeat(self, process: str, alive_us: int) -> tuple[int, int]:
        """How many processes are alive, and how many us remain until this world admits."""
        answer = await self._call(_HEARTBEAT, process, alive_us)
        return answer[2], answer[3]

    async def _call(self, script: _Script, *arguments: object) -> Any:
        now_us = self._clock() if self._clock else -1
        argument = word(_encode((self._seen, now_us, *arguments)))
        head = self._heads.get(script.sha)
        if head is None:
            head = self._heads[script.sha] = self._head("EVALSHA", script.sha)
        answer = _decode(await self._run(head + argument, lambda: self._head("EVAL", script.text) + argument))
        if answer[0] == "lost":
            raise EpochLost("the limit store was wiped, or restored from an older copy")
        self._seen = max(self._seen, answer[1])
        if answer[0] == "healing":
            raise Healing("the limit store is being rebuilt after a wipe", retry_after_us=answer[2])
        return answer

    def _head(self, *words: Word) -> bytes:
        """A script's call up to its one argument."""
        words = (*words, len(self._keys), *self._keys)
        return b"*%d\r\n" % (len(words) + 1) + b"".join(map(word, words))

    async def _run(self, call: bytes, in_full: Callable[[], bytes]) -> Any:
        try:
            try:
                return await self._pipeline.execute(call)
            except ErrorReply as refused:
                if not str(refused).startswith("NOSCRIPT"):
                    raise
                return await self._pipeline.execute(in_full())  # nothing was run: a restarted server has forgotten it
        except (Unreachable, ErrorReply) as error:
            raise StoreUnavailable(f"the limit store does not answer: {error}") from error


def _lease(claim: Claim) -> str:
    return f"l:{claim.request_id.hex}"


def _field(named: Charge | BudgetWindow) -> str:
    return f"b:{named.budget_id}:{named.window}"


def _window(field: str) -> BudgetWindow:
    _, budget_id, window = field.split(":")
    return BudgetWindow(int(budget_id), window)


def _scopes(scopes: Sequence[Scope]) -> list[str | int]:
    flat: list[str | int] = []
    for scope in scopes:
        limits = scope.limits
        flat.append(f"k:{scope.name}")
        for limit in (limits.requests_per_minute, limits.tokens_per_minute, limits.max_parallel):
            flat.append(-1 if limit is None else limit)
    return flat


def _postings(claim: Claim, amounts: Mapping[int, int]) -> list[str | int]:
    """What is added to each budget period: field, units, nano.."""
    flat: list[str | int] = []
    for charge in claim.charges:
        nano = amounts.get(charge.budget_id, 0)
        if nano:
            flat += _field(charge), *divmod(nano, NANO)
    return flat


def _chunks(flat: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(flat), size):
        yield flat[start : start + size]
