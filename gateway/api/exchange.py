"""One caller request from its first byte to its last: identity, admission, attempts, the answer, settlement.

Every way out (answered, refused, the caller left, the upstream cut, stalled or failed in-band, our own mistake, shutdown)
runs through `Account.close`, which journals exactly one outcome, before the last byte goes out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from billing.usage import Usage
from gateway import errors, tokens
from gateway.access.authenticator import check_model
from gateway.api import failures
from gateway.api.account import CANCELLED, COMPLETED, FAILED, INCOMPLETE, Account
from gateway.api.asgi import (
    BODY,
    JSON,
    START,
    STREAM_HEADERS,
    CallerLeft,
    Departure,
    RawHeaders,
    Receive,
    Scope,
    Send,
    error_headers,
    read_body,
)
from gateway.api.surface import Surface, read_tags
from gateway.errors import ApiError
from gateway.ids import text_of
from gateway.routing.retries import MOST_ATTEMPTS, pause_s
from gateway.sse import DONE, KEEP_ALIVE, StreamBroken, StreamScanner
from gateway.upstream import reshape
from gateway.upstream.base import Answer, Call, Failure, Outgoing
from gateway.upstream.errors import TransportError
from gateway.upstream.openai import BadAnswer, tier_of
from gateway.upstream.usage import to_openai
from gateway.upstream.wire import UpstreamResponse

if TYPE_CHECKING:
    from gateway.routing.routes import Plan, Route
    from gateway.services import Services

logger = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 15.0
"""After this much silence towards a streaming caller a comment is sent, so that nothing between us gives up."""
SLOW_CALLER_S: Final = 300.0
"""A caller that takes no byte for this long has left, whatever its connection says."""
MOST_ANSWER_BYTES: Final = 256 << 20
CANCEL_WAIT_S: Final = 1.0
DRAIN_WAIT_S: Final = 1.0

LEFT: Final = "the caller left"
STALLED: Final = "the provider sent nothing for too long"
STOPPING: Final = "the gateway stopped"
_EMPTY: Final[dict[str, str]] = {}


class Interrupted(Exception):
    """A wait for the upstream was ended from outside: the caller left, or the provider was silent beyond its limit."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Exchange:
    """One request of one caller. `tick` is called by the watch, everything else by the request's own task."""

    __slots__ = (
        "_account", "_alive_s", "_call", "_departure", "_fallbacks", "_headers", "_id", "_interrupt", "_limit_s", "_plan",
        "_receive", "_retries", "_scope", "_send", "_sending_since_s", "_services", "_started", "_surface", "_tags",
        "_task", "_upstream_ns", "_waiting_since_s",
    )  # fmt: skip

    def __init__(self, services: Services, surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
        self._services = services
        self._surface = surface
        self._scope = scope
        self._receive = receive
        self._send = send
        self._account = Account(services)
        self._id = text_of(self._account.request_id)
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._task = asyncio.current_task()
        self._alive_s = 0.0
        self._departure: Departure | None = None
        self._call: Call | None = None
        self._plan: Plan | None = None
        self._tags: dict[str, str] = _EMPTY
        self._started = False
        self._interrupt: str | None = None
        self._waiting_since_s = 0.0
        self._sending_since_s = 0.0
        self._limit_s = 0.0
        self._upstream_ns = 0
        self._fallbacks = b"x-metergate-no-fallback" not in self._headers
        self._retries = b"x-metergate-no-retry" not in self._headers

    async def run(self) -> None:
        account, running = self._account, self._services.watch.running
        try:
            await self._admit()
            running.add(self)
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
            running.discard(self)
            if self._departure is not None:
                self._departure.stop()
            if not account.settled and account.lease is not None:
                account.close(FAILED, answered=None, error="ended without an outcome")
                self._services.spawn(account.settle())
            self._count()

    # ---- before any attempt ----

    async def _admit(self) -> None:
        services, account = self._services, self._account
        client = self._scope.get("client")
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
        services.router.find(call.model)
        check_model(identity, call.model)
        plan = self._plan = services.router.plan(call.model, time.monotonic())
        if not self._fallbacks:
            del plan.routes[1:]
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
        plan.retries.request(time.monotonic())
        self._departure = Departure(self._receive)

    def _check_context(self, call: Call, plan: Plan) -> None:
        """Only what cannot fit is refused here. An engine counts exactly, and says so itself."""
        window = plan.model.context_window
        if window is None or plan.routes[0].provider.settings.kind == "engine":
            return
        if tokens.floor(call.fields) > window:
            raise errors.context_overflow(
                limit=window,
                prompt_tokens=call.input_tokens,
                output_tokens=self._named_cap() or 0,
                param="messages" if call.surface == "chat" else "prompt",
            )

    def _named_cap(self) -> int | None:
        """The caller's maximum of output tokens, clamped to the model's."""
        assert self._call is not None and self._plan is not None
        named, most = self._call.output_cap, self._plan.model.max_output_tokens
        return named if named is None or most is None else min(named, most)

    def _cap_to_send(self) -> int | None:
        """The cap that goes upstream in place of the caller's: a clamped one, or the reserved one where none was named."""
        assert self._call is not None and self._account.lease is not None
        if self._account.lease.output_cap is not None:
            return self._account.lease.output_cap
        named = self._named_cap()
        return named if named != self._call.output_cap else None

    # ---- attempts ----

    async def _serve(self) -> None:
        """Tries routes until one answers. Raises `ApiError` of the last failure."""
        assert self._plan is not None
        plan, place, again = self._plan, 0, 0
        while True:
            route = plan.routes[place]
            failure = await self._attempt(route)
            if failure is None:
                return
            logger.warning("request %s: attempt at %s failed: %s", self._id, route.provider_name, failure.reason)
            if not failure.retryable or len(self._account.opened) >= MOST_ATTEMPTS:
                raise failure.error
            following = self._next_fallback(plan, place)
            if following is not None and plan.retries.take():
                place = following
                continue
            pause = self._pause(plan.routes[place], failure, again + 1)
            if pause is None or not plan.retries.take():
                raise failure.error
            again += 1
            await self._sleep(pause)

    def _next_fallback(self, plan: Plan, place: int) -> int | None:
        now_s = time.monotonic()
        return next((i for i in range(place + 1, len(plan.routes)) if plan.routes[i].usable(now_s)), None)

    def _pause(self, route: Route, failure: Failure, again: int) -> float | None:
        """How long to wait before the same route is tried again; None when it is not worth it."""
        if not self._retries:
            return None
        pause = pause_s(again, failure.retry_after_s, self._services.router.jitter)
        now_s = time.monotonic()
        if pause is None or not route.provider.available or route.breaker.opens_in_s(now_s) > pause:
            return None
        return pause

    async def _attempt(self, route: Route) -> Failure | None:
        call, account, provider = self._call, self._account, route.provider
        assert call is not None and account.lease is not None and account.identity is not None
        attempt_id = self._id if not account.opened else f"{self._id}-{len(account.opened) + 1}"
        outgoing = provider.adapter.prepare(
            call, route, request_id=attempt_id, output_cap=self._cap_to_send(), team_id=account.identity.team_id
        )
        sequence = account.open(call, route, account.lease.reserved, self._tags)
        began_ns = time.monotonic_ns()
        provider.in_flight += 1
        route.breaker.begin(time.monotonic())
        try:
            if call.streamed:
                failure = await self._stream(route, outgoing, sequence, attempt_id, began_ns)
            else:
                failure = await self._whole(route, outgoing, sequence, attempt_id, began_ns)
        except BaseException:
            route.breaker.abandoned()
            raise
        finally:
            provider.in_flight -= 1
        if failure is None:
            if account.status == COMPLETED:
                route.breaker.success()
            elif account.status == CANCELLED:
                route.breaker.abandoned()
            return None
        if failure.blames_route:
            route.breaker.failure(time.monotonic(), failure.retry_after_s)
        else:
            route.breaker.abandoned()
        if len(account.attempts) < sequence:
            account.outcome(sequence, FAILED, began_ns=began_ns, error=failure.reason)
        return failure

    async def _whole(
        self, route: Route, outgoing: Outgoing, sequence: int, attempt_id: str, began_ns: int
    ) -> Failure | None:
        """An answer in one piece. Returns the failure, or None when the caller has been answered."""
        call, provider, account = self._call, route.provider, self._account
        assert call is not None
        response: UpstreamResponse | None = None
        try:
            response = await self._open(route, outgoing)
            body = await self._read_whole(response, provider.settings.timeout_s)
            retry_after = failures.retry_after(response) if response.status != 200 else None
            content_type = response.header("content-type") or ""
        except Interrupted as interrupted:
            if interrupted.why != LEFT:
                return failures.timed_out(provider.name)
            await self._left(route, response, None, sequence, attempt_id, began_ns)
            return None
        except TransportError as error:
            return failures.broken(provider.name, error)
        except StreamBroken as error:
            return failures.unreadable(provider.name, str(error))
        finally:
            self._upstream_ns += time.monotonic_ns() - began_ns
            if response is not None:
                await response.aclose()
        if response.status != 200:
            return provider.adapter.failure(provider, response.status, retry_after, body)
        try:
            answer = provider.adapter.read_answer(call, content_type, body)
        except BadAnswer as bad:
            return failures.bad_answer(route, bad)
        usage, estimated = answer.usage, False
        if usage is None:
            usage, estimated = self._estimate(tokens.of_text(answer.output_bytes)), True
        account.outcome(
            sequence, COMPLETED, began_ns=began_ns, usage=usage, tier=answer.service_tier, estimated=estimated
        )
        status = CANCELLED if self._gone() else COMPLETED
        account.close(status, answered=sequence, estimated=estimated or usage.flaw is not None)
        await account.settle()
        await self._send_answer(route, answer)
        return None

    async def _send_answer(self, route: Route, answer: Answer) -> None:
        headers = self._answer_headers(route)
        headers.append(JSON)
        cost = self._account.cost()
        if cost is not None:
            headers.append((b"x-metergate-cost", cost.encode()))
        headers.append((b"content-length", str(len(answer.body)).encode()))
        self._started = True
        await self._send({"type": START, "status": 200, "headers": headers})
        await self._send({"type": BODY, "body": answer.body})

    async def _open(self, route: Route, outgoing: Outgoing) -> UpstreamResponse:
        """The provider's response headers. Raises `TransportError` or `Interrupted`."""
        self._wait(route.provider.settings.timeout_s)
        try:
            return await route.provider.transport.post(outgoing.url, outgoing.headers, outgoing.body)
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0

    # ---- streams ----

    async def _stream(
        self, route: Route, outgoing: Outgoing, sequence: int, attempt_id: str, began_ns: int
    ) -> Failure | None:
        """A stream. Returns a failure only while the caller has seen no content; afterwards it ends in-band."""
        call, provider = self._call, route.provider
        assert call is not None
        scanner = provider.adapter.scanner(call)
        response: UpstreamResponse | None = None
        try:
            try:
                response = await self._open(route, outgoing)
                failure = await self._receive_stream(route, response, scanner)
            except Interrupted as interrupted:
                if interrupted.why == LEFT:
                    await self._left(route, response, scanner, sequence, attempt_id, began_ns)
                    return None
                failure = failures.timed_out(provider.name)
            except TransportError as error:
                failure = failures.broken(provider.name, error)
            except StreamBroken as error:
                failure = failures.unreadable(provider.name, str(error))
            except BaseException as error:
                why = STOPPING if isinstance(error, asyncio.CancelledError) else "internal error"
                self._note_partial(scanner, sequence, began_ns, INCOMPLETE, why)
                raise
            if failure is not None and self._account.ttft_us is None:
                if scanner.size:  # it produced something that nobody saw: its cost is kept, the caller pays none of it
                    usage, _ = self._stream_usage(route, scanner)
                    self._account.outcome(
                        sequence, FAILED, began_ns=began_ns, usage=usage, error=failure.reason, estimated=True
                    )
                return failure
            await self._end_stream(route, scanner, failure, sequence, began_ns)
            return None
        finally:
            if response is not None:
                await self._finish_reading(response, scanner)

    async def _receive_stream(self, route: Route, response: UpstreamResponse, scanner: StreamScanner) -> Failure | None:
        provider = route.provider
        if response.status != 200:
            body = await self._read_whole(response, provider.settings.idle_timeout_s)
            return provider.adapter.failure(provider, response.status, failures.retry_after(response), body)
        if (response.header("content-type") or "").startswith("application/json"):
            return await self._split_answer(route, response, scanner)
        return await self._pump(route, response, scanner)

    async def _pump(self, route: Route, response: UpstreamResponse, scanner: StreamScanner) -> Failure | None:
        """Moves reads until the stream is done. What came with `[DONE]` is left in the scanner for the last send."""
        watch, send, read_chunk = self._services.watch, self._send, response.read_chunk
        account, self._limit_s = self._account, route.provider.settings.idle_timeout_s
        try:
            while True:
                self._waiting_since_s = watch.now_s
                read = await read_chunk()
                self._waiting_since_s = 0.0
                if read is None:
                    scanner.tail = scanner.end()
                    break
                out = scanner.feed(read)
                if scanner.done:
                    scanner.tail = out
                    break
                if out:
                    if account.ttft_us is None:
                        await self._begin(route)
                    self._sending_since_s = watch.now_s
                    await send({"type": BODY, "body": out, "more_body": True})
                    self._sending_since_s = 0.0
                    if self._gone():
                        raise Interrupted(LEFT)
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = self._sending_since_s = 0.0
        return self._judge(route, scanner)

    def _judge(self, route: Route, scanner: StreamScanner) -> Failure | None:
        """Whether what has ended was an answer."""
        if scanner.error is not None:
            return route.provider.adapter.in_band_failure(route.provider, scanner.error)
        if scanner.done or (scanner.finished and not scanner.truncated):
            return None
        return failures.cut_off(route.provider.name)

    async def _split_answer(self, route: Route, response: UpstreamResponse, scanner: StreamScanner) -> Failure | None:
        """A provider that answered a request for a stream with one whole answer: made into a stream."""
        body = await self._read_whole(response, route.provider.settings.timeout_s)
        try:
            events = body if body.startswith((b"data:", b":", b"event:")) else reshape.split(body)
        except reshape.Unreadable as error:
            return failures.unreadable(route.provider.name, str(error))
        scanner.tail = scanner.feed(events) + scanner.end()
        return self._judge(route, scanner)

    async def _read_whole(self, response: UpstreamResponse, limit_s: float) -> bytes:
        """The whole body. Raises `StreamBroken` beyond `MOST_ANSWER_BYTES`."""
        self._wait(limit_s)
        pieces: list[bytes] = []
        size = 0
        try:
            while (piece := await response.read_chunk()) is not None:
                pieces.append(piece)
                size += len(piece)
                if size > MOST_ANSWER_BYTES:
                    raise StreamBroken(f"an answer of more than {MOST_ANSWER_BYTES} bytes")
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _begin(self, route: Route) -> None:
        """The first content is about to go out: from here on there is no other route."""
        if self._account.ttft_us is None:
            self._account.ttft_us = self._account.elapsed_us()
        if not self._started:
            self._started = True
            await self._send({"type": START, "status": 200, "headers": [*self._answer_headers(route), *STREAM_HEADERS]})

    async def _end_stream(
        self, route: Route, scanner: StreamScanner, failure: Failure | None, sequence: int, began_ns: int
    ) -> None:
        """Closes the books, then sends the last bytes: the usage chunk if wanted and `[DONE]`, or the error."""
        account, call = self._account, self._call
        assert call is not None
        if account.ttft_us is None:  # the whole of it came in one read
            account.ttft_us = account.elapsed_us()
        usage, estimated = self._stream_usage(route, scanner)
        error = None if failure is None else failure.reason
        status = COMPLETED if failure is None else INCOMPLETE
        account.outcome(
            sequence,
            status,
            began_ns=began_ns,
            usage=usage,
            error=error,
            tier=tier_of(scanner.service_tier),
            estimated=estimated,
        )
        account.close(status, answered=sequence, estimated=estimated or usage.flaw is not None, error=error)
        await account.settle()
        if failure is not None:
            if failure.blames_route:
                route.breaker.failure(time.monotonic(), failure.retry_after_s)
            last = scanner.tail + self._surface.error_event(failure.error)
        elif call.wants_usage:
            last = scanner.tail + scanner.usage_event(scanner.usage or to_openai(usage), account.cost()) + DONE
        else:
            last = scanner.tail + DONE
        await self._begin(route)
        await self._send({"type": BODY, "body": last})

    def _stream_usage(self, route: Route, scanner: StreamScanner) -> tuple[Usage, bool]:
        usage = None if scanner.usage is None else route.provider.adapter.usage(scanner.usage)
        if usage is not None:
            return usage, False
        return self._estimate(scanner.output_tokens()), True

    async def _finish_reading(self, response: UpstreamResponse, scanner: StreamScanner) -> None:
        """The caller has everything. A connection whose body was read to its end can carry the next call."""
        try:
            if scanner.done and scanner.error is None:
                async with asyncio.timeout(DRAIN_WAIT_S):
                    while await response.read_chunk() is not None:
                        pass
        except (TransportError, TimeoutError):
            pass
        finally:
            await response.aclose()

    # ---- ways to end early ----

    async def _left(
        self,
        route: Route,
        response: UpstreamResponse | None,
        scanner: StreamScanner | None,
        sequence: int,
        attempt_id: str,
        began_ns: int,
    ) -> None:
        """The caller is gone: the provider is told to stop, and what it produced is billed."""
        usage: Usage | None = None
        try:
            async with asyncio.timeout(CANCEL_WAIT_S):
                usage = await route.provider.adapter.cancel(route.provider, attempt_id)
        except TimeoutError:
            logger.warning("request %s: %s did not confirm the cancellation", self._id, route.provider_name)
        except asyncio.CancelledError:
            self._note_partial(scanner, sequence, began_ns, CANCELLED, LEFT)
            raise
        finally:
            if response is not None:
                await response.aclose()
        if usage is None:
            self._note_partial(scanner, sequence, began_ns, CANCELLED, LEFT)
        else:
            self._account.outcome(sequence, CANCELLED, began_ns=began_ns, usage=usage, error=LEFT)
            self._account.close(CANCELLED, answered=sequence, error=LEFT)
        await self._account.settle()

    def _note_partial(
        self, scanner: StreamScanner | None, sequence: int, began_ns: int, status: str, error: str
    ) -> None:
        """Closes with what is known of an attempt that was ended from our side; the figure is an estimate."""
        account = self._account
        assert account.route is not None
        usage = None
        if scanner is not None and scanner.usage is not None:
            usage = account.route.provider.adapter.usage(scanner.usage)
        if usage is None:
            usage = self._estimate(0 if scanner is None else scanner.output_tokens())
        account.outcome(sequence, status, began_ns=began_ns, usage=usage, error=error, estimated=True)
        delivered = account.ttft_us is not None or error == LEFT
        account.close(status, answered=sequence if delivered else None, estimated=True, error=error)

    async def _stopped(self) -> None:
        """The server is going down and ends this request. No more waiting; a stream still hears why."""
        account = self._account
        if account.opened and not account.closed:
            self._note_partial(None, len(account.opened), account.begun_ns, INCOMPLETE, STOPPING)
        error = errors.unavailable("The gateway is shutting down.", code="shutting_down", retry_after_s=1.0)
        if self._started and self._call is not None and self._call.streamed:
            await self._send({"type": BODY, "body": self._surface.error_event(error)})

    async def _refuse(self, error: ApiError) -> None:
        """The request ends in an error: plain while nothing was sent, in-band afterwards."""
        account = self._account
        account.close(
            INCOMPLETE if account.ttft_us is not None else FAILED, answered=None, error=error.code or error.type
        )
        await account.settle()
        if self._started:
            await self._send({"type": BODY, "body": self._surface.error_event(error)})
            return
        body = self._surface.error_body(error)
        headers = error_headers(error)
        headers.append((b"x-request-id", self._id.encode()))
        if account.opened:
            headers.append((b"x-metergate-attempts", str(len(account.opened)).encode()))
        if account.lease is not None:
            headers += account.lease.headers
        headers.append((b"content-length", str(len(body)).encode()))
        self._started = True
        await self._send({"type": START, "status": error.status, "headers": headers})
        await self._send({"type": BODY, "body": body})
        if not account.opened:
            self._services.metrics.refused.labels(str(error.status)).inc()

    # ---- waiting, and being interrupted ----

    def _wait(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._waiting_since_s = self._services.watch.now_s

    async def _sleep(self, pause: float) -> None:
        """A pause between attempts. Raises `Interrupted` when the caller leaves."""
        self._wait(pause + 60.0)
        try:
            await asyncio.sleep(pause)
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0

    def _interruption(self) -> BaseException:
        """What a cancelled wait means: an interruption by the watch, or a true cancellation of the task."""
        why, self._interrupt = self._interrupt, None
        self._waiting_since_s = 0.0
        if why is None:
            return asyncio.CancelledError()
        assert self._task is not None
        self._task.uncancel()
        return Interrupted(why)

    def _gone(self) -> bool:
        return self._departure is not None and self._departure.gone

    def tick(self, now_s: float) -> None:
        """Called by the watch. Ends a wait whose caller has left or whose provider is silent beyond the limit."""
        if self._interrupt is not None:
            return
        since = self._waiting_since_s
        if self._gone():
            self._end_wait(LEFT)
        elif since:
            silence = now_s - since
            if silence > self._limit_s:
                self._end_wait(STALLED)
            elif silence > KEEP_ALIVE_S and self._call is not None and self._call.streamed:
                self._keep_alive(silence)
        elif self._sending_since_s and now_s - self._sending_since_s > SLOW_CALLER_S:
            self._interrupt = LEFT
            if self._task is not None:
                self._task.cancel()

    def _end_wait(self, why: str) -> None:
        """Only a task that waits for the upstream is interrupted; one that sends looks for itself afterwards."""
        if self._waiting_since_s and self._task is not None:
            self._interrupt = why
            self._task.cancel()

    def _keep_alive(self, now_s: float) -> None:
        if now_s - self._alive_s >= KEEP_ALIVE_S:
            self._alive_s = now_s
            self._services.spawn(self._send_comment())

    async def _send_comment(self) -> None:
        """A comment between events, if the request still waits. Before the first content it also starts the answer."""
        if not self._waiting_since_s or self._account.route is None:
            return
        if not self._started:
            self._started = True
            headers = [*self._answer_headers(self._account.route), *STREAM_HEADERS]
            await self._send({"type": START, "status": 200, "headers": headers})
        await self._send({"type": BODY, "body": KEEP_ALIVE, "more_body": True})

    # ---- the rest ----

    def _estimate(self, output_tokens: int) -> Usage:
        assert self._call is not None
        return Usage(input=self._call.input_tokens, output=output_tokens)

    def _answer_headers(self, route: Route) -> RawHeaders:
        account = self._account
        assert account.lease is not None
        return [
            (b"x-request-id", self._id.encode()),
            (b"x-metergate-provider", route.provider_name.encode("latin-1", "replace")),
            (b"x-metergate-attempts", b"1" if len(account.opened) == 1 else str(len(account.opened)).encode()),
            *account.lease.headers,
        ]

    def _count(self) -> None:
        """Metrics of a request that reached a provider; refusals are counted where they are sent."""
        account = self._account
        if not account.opened:
            return
        metrics, first = self._services.metrics, account.opened[-1]
        for opened, outcome in zip(account.opened, account.attempts, strict=False):
            metrics.route(first.surface, first.model, opened.provider).attempted(outcome.status)
        took_us = account.elapsed_us()
        metrics.route(first.surface, first.model, first.provider).finished(
            account.status,
            duration_us=took_us,
            ttft_us=account.ttft_us,
            overhead_us=max(0, took_us - self._upstream_ns // 1000) if self._upstream_ns else None,
        )
