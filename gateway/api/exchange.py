"""One caller request from its first byte to its last: identity, admission, attempts, the answer, settlement.

Every way out (answered, refused, the caller left, the upstream cut, stalled or failed in-band, our own mistake, shutdown)
runs through `Account.close`, which journals exactly one outcome, before the last byte goes out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from gateway import errors, tokens
from gateway.access.authenticator import IDENTITY, check_model
from gateway.api import failures
from gateway.api.account import CANCELLED, COMPLETED, FAILED, INCOMPLETE, NOTHING, Account
from gateway.api.asgi import JSON, JSON_LINE, CallerLeft, Receive, Scope, Send, error_headers, lines_of, read_body
from gateway.api.attempt import Attempt
from gateway.api.caller import LEFT, Caller, Interrupted
from gateway.api.hedge import race
from gateway.api.streaming import STOPPING, StreamRelay
from gateway.api.succession import UNMAPPED, Succession
from gateway.api.surface import Surface, read_tags
from gateway.api.turns import take_turn
from gateway.errors import ApiError
from gateway.ids import text_of
from gateway.routing.routes import Asker
from gateway.sse import StreamBroken
from gateway.telemetry.context import is_sampled, read_traceparent, traceparent
from gateway.upstream.base import BadAnswer, Failure
from gateway.upstream.errors import TransportError

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.answer_cache import Keeping, KeptAnswer
    from gateway.routing.routes import Model, Plan, Route
    from gateway.services import Services
    from gateway.upstream.base import Answer, Call, Outgoing

logger = logging.getLogger(__name__)

_EMPTY: Final[dict[str, str]] = {}


class Exchange:
    """One request of one caller, run by the request's own task."""

    __slots__ = (
        "_account", "_call", "_caller", "_headers", "_id", "_keeping", "_kept", "_plan", "_receive", "_scope", "_services",
        "_surface", "_tags", "_upstream_ns",
    )  # fmt: skip

    def __init__(self, services: Services, surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
        self._services = services
        self._surface = surface
        self._scope = scope
        self._receive = receive
        self._caller = Caller(services, receive, send)
        self._account = Account(services)
        self._id = text_of(self._account.request_id)
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._call: Call | None = None
        self._plan: Plan | None = None
        self._tags: dict[str, str] = _EMPTY
        self._upstream_ns = 0
        self._keeping: Keeping | None = None
        self._kept: KeptAnswer | None = None

    async def run(self) -> None:
        account = self._account
        try:
            await self._admit()
            self._caller.arrived()
            await self._serve()
        except ApiError as error:
            await self._refuse(error)
        except CallerLeft:
            pass
        except Interrupted as interrupted:
            account.close(CANCELLED, answered=None, error=interrupted.why)
        except asyncio.CancelledError:
            await self._stopped()
            raise
        except Exception:
            logger.exception("request %s failed inside the gateway", self._id)
            await self._refuse(errors.internal())
        finally:
            self._caller.done()
            if not account.settled and account.lease is not None:
                account.close(FAILED, answered=None, error="ended without an outcome")
                self._services.spawn(account.settle())
            self._count()

    # ---- before any attempt ----

    async def _admit(self) -> None:
        services, account = self._services, self._account
        client = self._scope.get("client")
        identity = self._scope.get(IDENTITY)
        if identity is None:
            identity = services.authenticator.identify(self._scope["headers"], client[0] if client else None)
        account.identity = identity
        if services.draining:
            raise errors.unavailable(
                "This gateway is shutting down; try again.", code="shutting_down", retry_after_s=1.0
            )
        body = await read_body(self._headers, self._receive, services.settings.request_max_bytes)
        call = self._call = self._surface.read(body)
        tags = self._headers.get(b"x-metergate-tags")
        if tags is not None or identity.tags:
            self._tags = read_tags(tags, identity.tags)
        model = services.router.find(call.model)
        check_model(identity, call.model)
        if model.settings.cache is not None and await self._look_up(model, call, identity):
            return
        asker = Asker(identity.key_id, identity.team_id, identity.models, call)
        plan = self._plan = services.router.plan(call.model, time.monotonic(), asker)
        if b"x-metergate-no-fallback" in self._headers:
            del plan.routes[1:]
            plan.fallbacks.clear()
        self._check_context(call, plan)
        lease = account.lease = await services.admission.admit(
            identity,
            request_id=account.request_id,
            input_tokens=call.input_tokens,
            output_cap=call.output_cap,
            n=call.generated or call.choices,
            candidates=plan.routes,
            at_us=account.at_us,
            model=plan.model,
        )
        account.snapshot = lease.snapshot
        plan.routes[:] = lease.routes  # what cannot be charged, or does not fit the budget, is not tried
        plan.retries.request(time.monotonic(), identity.key_id)

    async def _look_up(self, model: Model, call: Call, identity: Identity) -> bool:
        """Whether the answer is at hand already. Such a request counts as one, and reserves nothing."""
        services, account = self._services, self._account
        keeping = self._keeping = services.answers.keeping(model, call, identity, self._headers)
        self._kept = None if keeping is None else await services.answers.find(keeping.key)
        if self._kept is None:
            return False
        account.lease = await services.admission.admit(
            identity,
            request_id=account.request_id,
            input_tokens=0,
            output_cap=0,
            n=1,
            candidates=(),
            at_us=account.at_us,
            model=model.settings,
        )
        account.snapshot = account.lease.snapshot
        return True

    def _check_context(self, call: Call, plan: Plan) -> None:
        """Refuses only what cannot fit, where no larger model may serve it. An engine counts exactly, and says so itself."""
        while True:
            window = plan.routes[0].of.context_window
            if (
                window is None
                or plan.routes[0].provider.settings.kind == "engine"
                or tokens.floor(call.fields) <= window
            ):
                return
            larger = self._services.router.fall_back(plan, time.monotonic(), beyond=window)
            if not larger:
                raise errors.context_overflow(
                    limit=window,
                    prompt_tokens=call.input_tokens,
                    output_tokens=self._named_cap() or 0,
                    param=next((name for name in tokens.PROMPT_FIELDS if name in call.fields), "messages"),
                )
            plan.routes[:] = larger

    def _named_cap(self) -> int | None:
        """The caller's maximum of output tokens, clamped to the model's."""
        assert self._call is not None and self._plan is not None
        named, most = self._call.output_cap, self._plan.model.max_output_tokens
        return named if named is None or most is None else min(named, most)

    def _cap_to_send(self, route: Route) -> int | None:
        """The cap that goes upstream: what was reserved, wherever the caller named one or a hard budget applies."""
        assert self._call is not None and self._account.lease is not None
        cap, most = self._account.lease.output_cap, route.of.max_output_tokens
        if cap is None or not self._call.speaks:
            return None
        return cap if most is None else min(cap, most)

    # ---- attempts ----

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
        attempt.sequence = account.open(call, route, account.lease.reserved, self._tags)
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
        if attempt.keeping is not None and failure is None and self._account.status == COMPLETED:
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
        attempt.end(self._services)
        if failure is None:
            attempt.route.breaker.abandoned()
            attempt.lose(self._services)
        else:
            self._judge(attempt, failure)
            attempt.outcome(FAILED, error=failure.reason)

    def _trace(self, outgoing: Outgoing) -> None:
        """Journals whose trace the request belongs to, and hands the attempt's own span on to the provider."""
        account, identifier = self._account, self._account.request_id.bytes
        header = self._headers.get(b"traceparent", b"")
        parent = read_traceparent(header)
        account.trace = "" if parent is None else header.decode()
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
        headers = [(b"x-request-id", self._id.encode()), (b"x-metergate-cache", b"hit"), *account.lease.headers]
        if call.streamed:
            self._caller.start_stream(lines_of(headers))
            await self._caller.end_stream(kept.content + kept.last(account.identity.settlement_currency))
            return
        headers += [JSON, (b"x-metergate-cost", f"0 {account.identity.settlement_currency}".encode())]
        await self._caller.answer(200, lines_of(headers), kept.content)

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
        provider, caller, account = attempt.route.provider, self._caller, self._account
        limit_s = provider.settings.timeout_s
        try:
            response = attempt.response = await caller.open(attempt.transport, attempt.outgoing, limit_s)
            body = await caller.read_whole(response, limit_s)
            if response.status != 200:
                return provider.adapter.failure(provider, response.status, failures.retry_after(response), body)
            answer = attempt.adapter.read_answer(attempt.call, response.header("content-type") or "", body)
        except Interrupted as interrupted:
            if interrupted.why != LEFT:
                return failures.timed_out(provider.name)
            await attempt.leave()
            return None
        except TransportError as error:
            return failures.broken(provider.name, error)
        except StreamBroken as error:
            return failures.unreadable(provider.name, str(error))
        except BadAnswer as bad:
            return failures.bad_answer(attempt.route, bad)
        except asyncio.CancelledError:
            attempt.close_partial(INCOMPLETE, STOPPING)
            raise
        finally:
            self._upstream_ns += time.monotonic_ns() - attempt.began_ns
            await attempt.release()
        attempt.first_content()
        usage, estimated = await attempt.answered(answer, attempt.route.of.tokenizer)
        attempt.outcome(COMPLETED, usage=usage, tier=answer.service_tier, estimated=estimated)
        status = CANCELLED if caller.gone else COMPLETED
        account.close(status, answered=attempt.sequence, estimated=estimated or usage.flaw is not None)
        await account.settle()
        if attempt.keeping is not None:
            attempt.keeping.hear(answer.body)
        await self._send_answer(attempt.route, answer)
        return None

    async def _send_answer(self, route: Route, answer: Answer) -> None:
        cost = self._account.cost()
        priced = b"" if cost is None else b"x-metergate-cost: %b\r\n" % cost.encode()
        kind = JSON_LINE if answer.content_type is None else b"content-type: %b\r\n" % answer.content_type.encode()
        await self._caller.answer(200, self._answer_lines(route) + kind + priced, answer.body)

    # ---- other endings ----

    async def _stopped(self) -> None:
        """The server is going down and ends this request. No more waiting; a caller that can still hear it hears why."""
        self._account.close(INCOMPLETE, answered=None, error=STOPPING)
        error = errors.unavailable("The gateway is shutting down.", code="shutting_down", retry_after_s=1.0)
        await self._say(error)

    async def _refuse(self, error: ApiError) -> None:
        account = self._account
        status = INCOMPLETE if account.ttft_us is not None else FAILED
        account.close(status, answered=None, error=error.code or error.type)
        await account.settle()
        await self._say(error)
        if not account.opened:
            self._services.metrics.refused.labels(str(error.status)).inc()

    async def _say(self, error: ApiError) -> None:
        """An error to the caller: plain while nothing was sent, in-band afterwards."""
        if self._caller.started:
            if self._call is not None and self._call.streamed:
                await self._caller.end_stream(self._surface.error_event(error, self._call))
            return
        account = self._account
        headers = error_headers(error)
        headers.append((b"x-request-id", self._id.encode()))
        if account.opened:
            headers.append((b"x-metergate-attempts", str(len(account.opened)).encode()))
        if account.lease is not None:
            headers += account.lease.headers
        await self._caller.answer(error.status, lines_of(headers), self._surface.error_body(error))

    def _answer_lines(self, route: Route) -> bytes:
        account = self._account
        assert account.lease is not None and self._call is not None
        served = None if route.of.name == self._call.model else route.of.name
        return b"x-request-id: %b\r\n%b%b" % (
            self._id.encode(),
            _served_lines(route.provider_name, len(account.opened), served),
            lines_of(account.lease.headers),
        )

    def _count(self) -> None:
        """Metrics of a request that reached a provider; refusals are counted where they are sent."""
        account = self._account
        if not account.opened:
            return
        metrics, first = self._services.metrics, account.opened[(account.answered or 0) - 1]
        for outcome in account.attempts:
            opened = account.opened[outcome.sequence - 1]
            metrics.route(first.surface, first.model, opened.provider).attempted(outcome.status)
            if outcome.usage is not None and outcome.usage.flaw is not None:
                metrics.flawed.labels(opened.provider).inc()
        took_us = account.elapsed_us()
        metrics.route(first.surface, first.model, first.provider).finished(
            account.status,
            duration_us=took_us,
            ttft_us=account.ttft_us,
            overhead_us=max(0, took_us - self._upstream_ns // 1000) if self._upstream_ns else None,
        )


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
