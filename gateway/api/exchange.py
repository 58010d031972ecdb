"""One caller request from its first byte to its last: identity, admission, attempts, the answer, settlement.

Every way out (answered, refused, the caller left, the upstream cut, stalled or failed in-band, our own mistake, shutdown)
runs through `Account.close`, which journals exactly one outcome, before the last byte goes out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from gateway import errors, tokens
from gateway.access.authenticator import IDENTITY, check_model
from gateway.api.account import CANCELLED, FAILED, INCOMPLETE, Account
from gateway.api.asgi import (
    CallerLeft,
    Receive,
    Scope,
    Send,
    check_length,
    error_headers,
    inflated,
    lines_of,
    read_body,
)
from gateway.api.caller import Caller, Interrupted
from gateway.api.serving import Serving
from gateway.api.streaming import STOPPING
from gateway.api.surface import Surface, read_tags
from gateway.errors import ApiError
from gateway.ids import text_of
from gateway.routing.routes import Asker

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.routing.routes import Model, Plan
    from gateway.services import Services
    from gateway.upstream.base import Call

logger = logging.getLogger(__name__)

_EMPTY: Final[dict[str, str]] = {}


class Exchange(Serving):
    """One request of one caller, run by the request's own task: who asks, what may be had, and every way that it ends."""

    __slots__ = ("_receive", "_scope")

    def __init__(self, services: Services, surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
        self._services = services
        self._surface = surface
        self._scope = scope
        self._receive = receive
        self._caller = Caller(services, receive, send)
        self._account = Account(services)
        self._id = text_of(self._account.request_id)
        self._headers = dict(scope["headers"])
        self._call = None
        self._plan = None
        self._tags = _EMPTY
        self._upstream_ns = 0
        self._keeping = None
        self._kept = None

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
        call = self._call = self._surface.read(await self._read())
        tags = self._headers.get(b"x-metergate-tags")
        if tags is not None or identity.tags:
            self._tags = read_tags(tags, identity.tags)
        model = services.router.serving(call.model)
        if model.name != call.model:
            call.name_model(model.name)
        call.input_tokens += model.settings.prompt_overhead
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

    async def _read(self) -> bytes:
        """The request's body. Raises `ApiError` 413, 415 or 400, or `CallerLeft`."""
        limit_bytes = self._services.settings.request_max_bytes
        check_length(self._headers, limit_bytes)
        body = self._caller.whole()
        if body is None:
            body = await read_body(self._receive, limit_bytes)
        return inflated(self._headers, body, limit_bytes)

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
                or call.input_tokens <= window  # as a prompt's estimate errs upward, and its floor downward
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
        limits = b"" if account.lease is None else account.lease.lines
        await self._caller.answer(error.status, lines_of(headers) + limits, self._surface.error_body(error))

    def _count(self) -> None:
        """Metrics of a request that reached a provider; refusals are counted where they are sent."""
        account = self._account
        if not account.opened:
            return
        metrics, first = self._services.metrics, account.opened[(account.answered or 0) - 1]
        serving = metrics.route(first.surface, first.model, first.provider)
        for outcome in account.attempts:
            opened = account.opened[outcome.sequence - 1]
            route = serving if opened is first else metrics.route(first.surface, first.model, opened.provider)
            route.attempted(outcome.status)
            if outcome.usage is not None and outcome.usage.flaw is not None:
                metrics.flawed.labels(opened.provider).inc()
        took_us = account.elapsed_us()
        serving.finished(
            account.status,
            duration_us=took_us,
            ttft_us=account.ttft_us,
            overhead_us=max(0, took_us - self._upstream_ns // 1000) if self._upstream_ns else None,
        )
