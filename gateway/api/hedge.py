"""Two attempts at once: a second one when the first is slow to begin, and the one that begins first stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from gateway.api import failures
from gateway.api.caller import Interrupted
from gateway.upstream.errors import TransportError

if TYPE_CHECKING:
    from gateway.api.attempt import Attempt
    from gateway.api.caller import Caller
    from gateway.upstream.base import Failure
    from gateway.upstream.wire import UpstreamResponse

Second = Callable[[], Awaitable["Attempt | None"]]
Lose = Callable[["Attempt", "Failure | None"], None]
Calling = asyncio.Task["Landed"]


class Landed:
    """A call that has come back already, behind the seams of a transport and of its response: what it gave, or raised."""

    def __init__(
        self, response: UpstreamResponse | None, first: bytes | None, error: BaseException | None = None
    ) -> None:
        self._response = response
        self._first = first
        self.error = error
        self.status = 0 if response is None else response.status

    @property
    def good(self) -> bool:
        return self.status == 200

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamResponse:
        if self.error is not None:
            raise self.error
        return self

    async def get(self, url: str, headers: Mapping[str, str]) -> UpstreamResponse:
        return await self.post(url, headers, b"")

    def header(self, name: str) -> str | None:
        return None if self._response is None else self._response.header(name)

    async def read_chunk(self) -> bytes | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return None if self._response is None else await self._response.read_chunk()

    @property
    def ended(self) -> bool:
        return self._first is None and (self._response is None or self._response.ended)

    async def aread(self) -> bytes:
        pieces = []
        while (piece := await self.read_chunk()) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()


async def race(caller: Caller, first: Attempt, delay_s: float, second: Second, lose: Lose) -> Attempt:
    """The attempt to go on with: its `transport` gives what has come of it, be that a failure, a departure or a stall.

    The one that begins first wins; one that fails wins only when the other has failed too. `lose` hears of the other.
    """
    calls: dict[Calling, Attempt] = {asyncio.create_task(_call(first)): first}
    try:
        await caller.wait_for(calls, first.route.provider.settings.timeout_s, within_s=delay_s)
        if not any(call.done() for call in calls):
            other = await second()
            if other is not None:
                calls[asyncio.create_task(_call(other))] = other
        winner, landed = await _first_to_begin(caller, calls)
    except (Interrupted, asyncio.CancelledError) as ended:
        winner, landed = first, Landed(None, None, ended)
    winner.transport = landed
    for call, attempt in calls.items():
        if attempt is not winner:
            lose(attempt, _failure(attempt, call.result()) if call.done() and not call.result().good else None)
        if not call.done():
            call.cancel()
        elif attempt is not winner or landed.error is not None:
            await call.result().aclose()
    return winner


async def _first_to_begin(caller: Caller, calls: Mapping[Calling, Attempt]) -> tuple[Attempt, Landed]:
    while True:
        done = [call for call in calls if call.done()]
        best = next((call for call in done if call.result().good), None)
        if best is None and len(done) == len(calls):
            best = done[0]
        if best is not None:
            return calls[best], best.result()
        pending = {call: attempt for call, attempt in calls.items() if not call.done()}
        limit_s = max(attempt.route.provider.settings.timeout_s for attempt in pending.values())
        await caller.wait_for(pending, limit_s)


async def _call(attempt: Attempt) -> Landed:
    """Sends it, and waits for the first bytes of a stream or the headers of a plain answer."""
    try:
        outgoing = attempt.outgoing
        response = await attempt.route.provider.transport.post(outgoing.url, outgoing.headers, outgoing.body)
        begun = await response.read_chunk() if attempt.call.streamed and response.status == 200 else None
    except TransportError as error:
        return Landed(None, None, error)
    return Landed(response, begun)


def _failure(attempt: Attempt, landed: Landed) -> Failure:
    provider = attempt.route.provider
    if isinstance(landed.error, TransportError):
        return failures.broken(provider.name, landed.error)
    return provider.adapter.failure(provider, landed.status, failures.retry_after(landed), b"")
