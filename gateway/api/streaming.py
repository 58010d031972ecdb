"""One attempt's stream, from the provider's first read to the caller's last byte."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from gateway.api import failures
from gateway.api.account import COMPLETED, FAILED, INCOMPLETE
from gateway.api.attempt import Attempt
from gateway.api.caller import LEFT, Caller, Interrupted
from gateway.api.surface import Surface
from gateway.sse import StreamBroken
from gateway.upstream import reshape
from gateway.upstream.errors import TransportError
from gateway.upstream.openai import tier_of

if TYPE_CHECKING:
    from gateway.upstream.base import Failure
    from gateway.upstream.events import Scanner

DRAIN_WAIT_S: Final = 1.0
STOPPING: Final = "the gateway stopped"


class StreamRelay:
    """`run` returns a failure only while the caller has seen no content; afterwards the stream ends in-band."""

    __slots__ = ("_account", "_attempt", "_caller", "_lines", "_scanner", "_surface")

    def __init__(self, attempt: Attempt, caller: Caller, surface: Surface, lines: bytes) -> None:
        assert attempt.scanner is not None
        self._attempt = attempt
        self._account = attempt.account
        self._caller = caller
        self._scanner: Scanner = attempt.scanner
        self._surface = surface
        self._lines = lines

    async def run(self) -> Failure | None:
        self._caller.stream_lines = self._lines
        try:
            failure = await self._relay()
        except BaseException:
            await self._finish_reading()
            raise
        await self._finish_reading()
        return failure

    async def _relay(self) -> Failure | None:
        attempt, caller = self._attempt, self._caller
        provider = attempt.route.provider
        try:
            attempt.response = await caller.open(attempt.transport, attempt.outgoing, provider.settings.timeout_s)
            failure = await self._receive()
        except Interrupted as interrupted:
            if interrupted.why == LEFT:
                await attempt.leave()
                return None
            failure = failures.timed_out(provider.name)
        except TransportError as error:
            failure = failures.broken(provider.name, error)
        except StreamBroken as broken:
            failure = failures.unreadable(provider.name, str(broken))
        except BaseException as error:
            why = STOPPING if isinstance(error, asyncio.CancelledError) else "internal error"
            attempt.close_partial(INCOMPLETE, why)
            raise
        if failure is not None and self._account.ttft_us is None:
            self._note_unseen(failure)
            return failure
        await self._end(failure)
        return None

    def _note_unseen(self, failure: Failure) -> None:
        """It may have produced something that nobody saw: its cost is kept, the caller pays none of it."""
        if self._scanner.size:
            usage, _ = self._attempt.usage_so_far()
            self._attempt.outcome(FAILED, usage=usage, error=failure.reason, estimated=True)

    async def _receive(self) -> Failure | None:
        attempt, response = self._attempt, self._attempt.response
        assert response is not None
        provider = attempt.route.provider
        if response.status != 200:
            body = await self._caller.read_whole(response, provider.settings.idle_timeout_s)
            return provider.adapter.failure(provider, response.status, failures.retry_after(response), body)
        if (response.header("content-type") or "").startswith("application/json"):
            return await self._split_answer()
        return await self._pump()

    async def _pump(self) -> Failure | None:
        """Moves reads until the stream is done. What came with `[DONE]` is left in the scanner for the last send."""
        account, caller, scanner, response = self._account, self._caller, self._scanner, self._attempt.response
        assert response is not None
        limit_s = self._attempt.route.provider.settings.idle_timeout_s
        while True:
            read = await caller.read(response, limit_s)
            if read is None:
                scanner.tail = scanner.end()
                self._attempt.hear(scanner.tail)
                break
            out = scanner.feed(read)
            self._attempt.hear(out)
            if scanner.done:
                scanner.tail = out
                break
            if out:
                if account.ttft_us is None:
                    self._begin()
                await caller.pass_on(out)
        return self._judge()

    def _judge(self) -> Failure | None:
        """Whether what has ended was an answer."""
        provider, scanner = self._attempt.route.provider, self._scanner
        if scanner.error is not None:
            return provider.adapter.in_band_failure(provider, scanner.error)
        if scanner.done or (scanner.finished and not scanner.truncated):
            return None
        return failures.cut_off(provider.name)

    async def _split_answer(self) -> Failure | None:
        """A provider that answered a request for a stream with one whole answer: made into a stream."""
        scanner, response, provider = self._scanner, self._attempt.response, self._attempt.route.provider
        assert response is not None
        body = await self._caller.read_whole(response, provider.settings.timeout_s)
        try:
            events = body if body.startswith((b"data:", b":", b"event:")) else provider.adapter.as_events(body)
        except reshape.Unreadable as error:
            return failures.unreadable(provider.name, str(error))
        scanner.tail = scanner.feed(events) + scanner.end()
        self._attempt.hear(scanner.tail)
        return self._judge()

    def _begin(self) -> None:
        """The first content is about to go out: from here on there is no other route."""
        if self._account.ttft_us is None:
            self._account.ttft_us = self._account.elapsed_us()
            self._attempt.first_content()
        self._caller.start_stream(self._lines)

    async def _end(self, failure: Failure | None) -> None:
        """Closes the books, then sends the last bytes: the usage chunk if wanted and `[DONE]`, or the error."""
        attempt, account, scanner = self._attempt, self._account, self._scanner
        if account.ttft_us is None:  # the whole of it came in one read
            account.ttft_us = account.elapsed_us()
            attempt.first_content()
        await attempt.count_heard()
        usage, estimated = attempt.usage_so_far()
        error = None if failure is None else failure.reason
        status = COMPLETED if failure is None else INCOMPLETE
        attempt.outcome(status, usage=usage, error=error, tier=tier_of(scanner.service_tier), estimated=estimated)
        account.close(status, answered=attempt.sequence, estimated=estimated or usage.flaw is not None, error=error)
        await account.settle()
        if failure is not None:
            if failure.blames_route:
                attempt.blame(failure)
            last = scanner.tail + self._surface.error_event(failure.error, attempt.call)
        else:
            ending = scanner.ending(usage, account.cost(), wanted=attempt.call.wants_usage)
            last = scanner.tail + ending
            if attempt.keeping is not None:
                attempt.keeping.end(ending, account.cost())
        self._begin()
        await self._caller.end_stream(last)

    async def _finish_reading(self) -> None:
        """The caller has everything. A connection whose body was read to its end can carry the next call."""
        self._caller.stream_lines = None
        await self._attempt.releasing(self._drain())

    async def _drain(self) -> None:
        response, scanner = self._attempt.response, self._scanner
        if response is None or response.ended or not scanner.done or scanner.error is not None:
            return
        with contextlib.suppress(TransportError, TimeoutError):
            async with asyncio.timeout(DRAIN_WAIT_S):
                while await response.read_chunk() is not None:
                    pass
