"""The provider's side of an exchange: routes, attempts, and the answer that one of them gives."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from gateway.api import failures
from gateway.api.account import CANCELLED, COMPLETED, FAILED, INCOMPLETE, NOTHING, Account
from gateway.api.asgi import JSON_LINE, lines_of
from gateway.api.attempt import Attempt
from gateway.api.caller import LEFT, Caller, Interrupted
from gateway.api.hedge import race
from gateway.api.streaming import STOPPING, StreamRelay
from gateway.api.succession import UNMAPPED, Succession
from gateway.api.surface import Surface
from gateway.api.turns import take_turn
from gateway.errors import ApiError
from gateway.sse import StreamBroken
from gateway.telemetry.context import is_sampled, read_traceparent, traceparent
from gateway.upstream.base import BadAnswer, Failure
from gateway.upstream.errors import TransportError

if TYPE_CHECKING:
    from gateway.answer_cache import Keeping, KeptAnswer
    from gateway.routing.routes import Plan, Route
    from gateway.services import Services
    from gateway.upstream.base import Answer, Call, Outgoing


class Serving:
    """What an `Exchange` does once it is admitted. It is a class of its own only so that each fits on a few screens."""

    __slots__ = (
        "_account", "_call", "_caller", "_headers", "_id", "_keeping", "_kept", "_plan", "_services", "_surface", "_tags",
        "_upstream_ns",
    )  # fmt: skip

    _account: Account
    _call: Call | None
    _caller: Caller
    _headers: dict[bytes, bytes]
    _id: str
    _keeping: Keeping | None
    _kept: KeptAnswer | None
    _plan: Plan | None
    _services: Services
    _surface: Surface
    _tags: dict[str, str]
    _upstream_ns: int

    async def _serve(self) -> None:
        """Tries routes until one answers. Raises `ApiError` of the last failure, or `Interrupted` in a pause."""
        if self._kept is not None:
            await self._replay(self._kept)
            return
        assert self._plan is not None
        may_retry = b"x-metergate-no-retry" not in self._headers
        succession = Succession(self._services, self._plan, self._account, may_retry=may_retry)
        while (failure := await self._attempt(succession)) is not None:
            pause = await succession.after(failure)
            if pause:
                await self._caller.pause(pause)

    async def _attempt(self, succession: Succession) -> Failure | None:
        """One attempt, or two of which the quicker one stays; the failure, or None when the request is over."""
        begun = await self._begin(succession.route)
        if isinstance(begun, Failure):
            return begun
        hedge_after_s = begun.hedge_after_s()
        if hedge_after_s is not None:
            begun = await race(self._caller, begun, hedge_after_s, partial(self._second, succession), self._lose)
        return await self._finish(begun)

    async def _begin(self, route: Route) -> Attempt | Failure:
        """An attempt, journalled before anything is sent; or why there is none. Raises `ApiError` 503, or `Interrupted`."""
        call, account, provider = self._call, self._account, route.provider
        assert call is not None and account.lease is not None and account.identity is not None
        identifier = self._id if not account.opened else f"{self._id}-{len(account.opened) + 1}"
        adapter = provider.adapter if call.over is None else call.over(provider.adapter)
        cap = self._cap_to_send(route)
        try:
            outgoing = adapter.prepare(
                call, route, request_id=identifier, output_cap=cap, team_id=account.identity.team_id
            )
        except ApiError as error:
            return Failure(error, False, False, None, UNMAPPED)
        if self._services.settings.telemetry.endpoint is not None:
            self._trace(outgoing)
        attempt = Attempt(account, call, route, adapter, identifier, outgoing, output_cap=cap)
        if provider.limited:
            turn = await take_turn(self._services.allowances, self._caller, provider, call.input_tokens + (cap or 0))
            if isinstance(turn, Failure):
                return turn
            attempt.share = turn
        if call.streamed:
            attempt.keep_heard(route.of.tokenizer)
        try:
            attempt.sequence = account.open(call, route, account.lease.reserved, self._tags)
        except ApiError:
            attempt.give_back(self._services, None)
            raise
        if self._keeping is not None:
            attempt.keeping = self._keeping = self._keeping.anew()
        attempt.begin()
        return attempt

    async def _finish(self, attempt: Attempt) -> Failure | None:
        """The attempt from its call to its end."""
        route = attempt.route
        try:
            if attempt.call.streamed:
                failure = await StreamRelay(attempt, self._caller, self._surface, self._answer_lines(route)).run()
            else:
                failure = await self._whole(attempt)
        except BaseException:
            route.breaker.abandoned()
            raise
        finally:
            attempt.end(self._services)
        failure = self._judge(attempt, failure)
        if failure is not None and not self._account.knows(attempt.sequence):
            attempt.outcome(FAILED, error=failure.reason)
        whole = failure is None and self._account.status == COMPLETED
        if attempt.keeping is not None and whole and route.of.name == attempt.call.model:  # no fallback's answer
            self._services.spawn(self._services.answers.keep(attempt.keeping))
        return failure

    async def _second(self, succession: Succession) -> Attempt | None:
        """Another attempt beside one that is slow to begin, where there is another route for it."""
        route = succession.spare()
        if route is None:
            return None
        try:
            begun = await self._begin(route)
        except ApiError:
            return None
        return None if isinstance(begun, Failure) else begun

    def _lose(self, attempt: Attempt, failure: Failure | None) -> None:
        """The other attempt answers. This one failed, or is broken off: what it may have used is kept as its cost."""
        if failure is None:
            attempt.route.breaker.abandoned()
            attempt.lose(self._services)
        else:
            self._judge(attempt, failure)
            attempt.outcome(FAILED, error=failure.reason)
        attempt.end(self._services)

    def _trace(self, outgoing: Outgoing) -> None:
        """Journals whose trace the request belongs to, and hands the attempt's own span on to the provider."""
        account, identifier = self._account, self._account.request_id.bytes
        parent = read_traceparent(self._headers.get(b"traceparent", b""))
        account.trace = "" if parent is None else parent.header()
        sampled = is_sampled(identifier, parent, self._services.settings.telemetry.share)
        outgoing.headers["traceparent"] = traceparent(identifier, len(account.opened) + 1, parent, sampled=sampled)

    async def _replay(self, kept: KeptAnswer) -> None:
        """An answer that was given before: a stream as a stream, a whole one whole. It costs nothing."""
        call, account = self._call, self._account
        assert call is not None and account.identity is not None and account.lease is not None
        sequence = account.open_kept(call, self._tags)
        account.ttft_us = account.elapsed_us()
        account.outcome(sequence, COMPLETED, began_ns=account.begun_ns, usage=NOTHING)
        account.close(COMPLETED, answered=sequence)
        await account.settle()
        lines = b"x-request-id: %b\r\nx-metergate-cache: hit\r\n%b" % (self._id.encode(), account.lease.lines)
        if call.streamed:
            self._caller.start_stream(lines)
            await self._caller.end_stream(kept.content + kept.last(account.identity.settlement_currency))
            return
        lines += b"x-metergate-cost: 0 %b\r\n" % account.identity.settlement_currency.encode()
        await self._caller.answer(200, lines + _kind_line(kept.content_type), kept.content)

    def _judge(self, attempt: Attempt, failure: Failure | None) -> Failure | None:
        """What the attempt says about its route. A stream that failed in-band has said so itself."""
        breaker = attempt.route.breaker
        if failure is not None and attempt.turns_key(failure):
            breaker.abandoned()
            return replace(failure, turned=True)
        if attempt.outgoing.own is not None:
            breaker.abandoned()  # the provider was not asked
        elif failure is not None and failure.blames_route:
            attempt.blame(failure)
        elif failure is not None or self._account.status == CANCELLED:
            breaker.abandoned()
        elif self._account.status == COMPLETED:
            breaker.success()
        return failure

    async def _whole(self, attempt: Attempt) -> Failure | None:
        """An answer in one piece. Returns the failure, or None when the caller has been answered."""
        account = self._account
        answer = await attempt.releasing(self._read_answer(attempt))
        if answer is None or isinstance(answer, Failure):
            return answer
        attempt.first_content()
        usage, estimated = await attempt.answered(answer, attempt.route.of.tokenizer)
        attempt.outcome(COMPLETED, usage=usage, tier=answer.service_tier, estimated=estimated)
        status = CANCELLED if self._caller.gone else COMPLETED
        account.close(status, answered=attempt.sequence, estimated=estimated or usage.flaw is not None)
        await account.settle()
        if attempt.keeping is not None:
            attempt.keeping.hear_whole(answer)
        await self._send_answer(attempt.route, answer)
        return None

    async def _read_answer(self, attempt: Attempt) -> Answer | Failure | None:
        """The provider's answer, or why there is none; None when the caller has left."""
        provider, caller = attempt.route.provider, self._caller
        limit_s = provider.settings.timeout_s
        try:
            response = attempt.response = await caller.open(attempt.transport, attempt.outgoing, limit_s)
            body = await caller.read_whole(response, limit_s)
            if response.status != 200:
                return provider.adapter.failure(provider, response.status, failures.retry_after(response), body)
            return attempt.adapter.read_answer(attempt.call, response.header("content-type") or "", body)
        except Interrupted as interrupted:
            if interrupted.why != LEFT:
                return failures.timed_out(provider.name)
            await attempt.leave()
            return None
        except TransportError as error:
            return failures.broken(provider.name, error)
        except StreamBroken as broken:
            return failures.unreadable(provider.name, str(broken))
        except BadAnswer as bad:
            return failures.bad_answer(attempt.route, bad)
        except asyncio.CancelledError:
            attempt.close_partial(INCOMPLETE, STOPPING)
            raise
        finally:
            self._upstream_ns += time.monotonic_ns() - attempt.began_ns

    async def _send_answer(self, route: Route, answer: Answer) -> None:
        cost = self._account.cost()
        priced = b"" if cost is None else b"x-metergate-cost: %b\r\n" % cost.encode()
        lines = self._answer_lines(route) + _kind_line(answer.content_type) + priced
        await self._caller.answer(200, lines, answer.body)

    def _cap_to_send(self, route: Route) -> int | None:
        """The cap that goes upstream: what was reserved, wherever the caller named one or a hard budget applies."""
        assert self._call is not None and self._account.lease is not None
        cap, most = self._account.lease.output_cap, route.of.max_output_tokens
        if cap is None or not self._call.speaks:
            return None
        return cap if most is None else min(cap, most)

    def _answer_lines(self, route: Route) -> bytes:
        account = self._account
        assert account.lease is not None and self._call is not None
        served = None if route.of.name == self._call.model else route.of.name
        return b"x-request-id: %b\r\n%b%b" % (
            self._id.encode(),
            _served_lines(route.provider_name, len(account.opened), served),
            account.lease.lines,
        )


def _kind_line(content_type: str | None) -> bytes:
    return JSON_LINE if content_type is None else b"content-type: %b\r\n" % content_type.encode()


@lru_cache(1024)
def _served_lines(provider: str, attempts: int, model: str | None) -> bytes:
    """Who served: the provider, after how many attempts, and the model where it is another than the one that was asked for."""
    lines = [
        (b"x-metergate-provider", provider.encode("latin-1", "replace")),
        (b"x-metergate-attempts", b"%d" % attempts),
    ]
    if model is not None:
        lines.append((b"x-metergate-model", model.encode("latin-1", "replace")))
    return lines_of(lines)
