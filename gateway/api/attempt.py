"""One attempt at one route, and what it is billed when it does not end by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from billing.usage import Usage
from gateway import tokens
from gateway.api.account import CANCELLED, INCOMPLETE, Account
from gateway.api.caller import LEFT
from gateway.routing.breaker import ROUTES_OWN
from gateway.spoken import text_of
from gateway.sse import StreamBroken
from gateway.token_counting import HEARD_BYTES, count_answer, count_stream, in_proportion
from gateway.upstream.doubt import judged
from gateway.upstream.errors import TransportError

if TYPE_CHECKING:
    from gateway.admission.claims import Claim
    from gateway.answer_cache import Keeping
    from gateway.routing.routes import Route
    from gateway.services import Services
    from gateway.upstream.base import Adapter, Answer, Call, Failure, Outgoing
    from gateway.upstream.events import Scanner
    from gateway.upstream.wire import Transport, UpstreamResponse

logger = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_WAIT_S: Final = 1.0
COUNT_WAIT_S: Final = 0.5
HEDGE_AFTER: Final = 0.95
OUTRUN: Final = "another attempt was quicker"


class Attempt:
    """`id` is what the provider knows the attempt by, `adapter` the provider's, speaking the caller's dialect.

    `scanner` is there for a stream, `response` once there is one; `share` is what it took of its provider's minute,
    `keeping` collects its answer where that may be given again.
    """

    __slots__ = (
        "_counted", "_credential", "_heard", "_most_output", "_tokenizer", "account", "adapter", "began_ns", "call", "id",
        "keeping", "outgoing", "response", "route", "scanner", "sequence", "share", "transport",
    )  # fmt: skip

    def __init__(
        self,
        account: Account,
        call: Call,
        route: Route,
        adapter: Adapter,
        identifier: str,
        outgoing: Outgoing,
        *,
        output_cap: int | None,
    ) -> None:
        self.account = account
        self.call = call
        self.route = route
        self._credential = route.provider.credential
        self.adapter = adapter
        self.id = identifier
        self.outgoing = outgoing
        self.sequence = 0
        self.transport: Transport = outgoing.own or route.provider.transport
        self.share: Claim | None = None
        self.keeping: Keeping | None = None
        self.began_ns = time.monotonic_ns()
        self.response: UpstreamResponse | None = None
        self.scanner: Scanner | None = adapter.scanner(call) if call.streamed else None
        self._most_output = None if output_cap is None else output_cap * (call.generated or call.choices)
        self._tokenizer: Path | None = None
        self._heard: bytearray | None = None
        self._counted: int | None = None

    def begin(self) -> None:
        """It goes out now; `end` says that it is over."""
        route, self.began_ns = self.route, time.monotonic_ns()
        route.provider.in_flight += 1
        route.in_flight += 1
        now_s = self.began_ns / 1e9
        route.breaker.begin(now_s)
        if (pace := route.pace(self.call.streamed)) is not None:
            pace.asked(now_s)

    def end(self, services: Services) -> None:
        self.route.provider.in_flight -= 1
        self.route.in_flight -= 1
        if self.share is not None:
            self.give_back(services, self.account.used_by(self.sequence))

    def give_back(self, services: Services, used: int | None) -> None:
        """What it took of its provider's minute and did not use; all of it (None) where it reached no provider."""
        if self.share is not None:
            services.spawn(services.allowances.give_back(self.share, used))

    def first_content(self) -> None:
        """The answer has begun; or the wait for it has ended without one."""
        pace = self.route.pace(self.call.streamed)
        if pace is not None:
            now_ns = time.monotonic_ns()
            pace.answered(now_ns / 1e9, (now_ns - self.began_ns) / 1e9)

    def hedge_after_s(self) -> float | None:
        """When a second attempt is worth its cost: after the time in which nearly all answers of this route began."""
        if not self.route.of.hedge:
            return None
        pace = self.route.pace(self.call.streamed)
        return None if pace is None else pace.percentile_s(HEDGE_AFTER)

    def lose(self, services: Services) -> None:
        """Another attempt was quicker. Until its provider has said what it used, this one's cost is its prompt."""
        now_ns, pace = time.monotonic_ns(), self.route.pace(self.call.streamed)
        if pace is not None:
            pace.outrun(now_ns / 1e9, (now_ns - self.began_ns) / 1e9)
        self.outcome(CANCELLED, usage=self.estimate(0), error=OUTRUN, estimated=True)
        services.spawn(self._break_off())

    async def _break_off(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_WAIT_S):
                usage = await self.adapter.cancel(self.route.provider, self.id)
                if usage is not None:
                    self.account.correct(self.sequence, usage)

    def usage_so_far(self) -> tuple[Usage, bool]:
        """What is known of its usage, and whether that is an estimate: the last the stream reported, or what it looks like."""
        scanner = self.scanner
        if scanner is not None and scanner.usage is not None:
            usage = self.adapter.usage(scanner.usage)
            if usage is not None:
                return self.judged(usage, scanner.output_tokens)
        if self._counted is not None:
            return self.estimate(self._counted), True
        return self.estimate(self._delivered()), True

    def judged(self, usage: Usage, delivered_tokens: Callable[[], int]) -> tuple[Usage, bool]:
        """What the provider reported, as it is billed, and whether a part of that is an estimate."""
        return judged(
            usage,
            input_tokens=self.call.input_tokens,
            most_output=self._most_output,
            delivered_tokens=delivered_tokens,
        )

    async def answered(self, answer: Answer, tokenizer: str | None) -> tuple[Usage, bool]:
        """The usage of a whole answer, and whether it is an estimate: then the text is counted as a stream's would be."""

        def delivered() -> int:
            return tokens.of_text(answer.output_bytes)

        if answer.usage is not None:
            return self.judged(answer.usage, delivered)
        counted: int | None = None
        if tokenizer is not None and self.call.dialect == "openai":
            counted = await asyncio.to_thread(count_answer, Path(tokenizer), answer.body)
        return self.estimate(delivered() if counted is None else counted), True

    def blame(self, failure: Failure) -> None:
        """Counts the failure against the route: once a request and under the key that asked, unless it is everyone's.

        A wait that the provider asked for is believed where it speaks of its load, not of what it was asked.
        """
        account, breaker = self.account, self.route.breaker
        if failure.error.status == 504:
            self.first_content()
        wait_s = failure.retry_after_s if failure.everyones or failure.error.status in (429, 503) else None
        if self.route in account.blamed and not (failure.everyones or breaker.tripped):
            breaker.hold(time.monotonic(), wait_s)
            return
        account.blamed.append(self.route)
        breaker.failure(time.monotonic(), wait_s, key=ROUTES_OWN if failure.everyones else account.key_id)

    def turns_key(self, failure: Failure) -> bool:
        """Whether the failure was that of the key used, and the provider has another one for us."""
        if failure.key_wait_s is None:
            return False
        return self.route.provider.turn(self._credential, time.monotonic(), failure.key_wait_s)

    def keep_heard(self, tokenizer: str | None) -> None:
        """Keeps what the caller is sent (a bounded part of it, where it is chat), to be counted should no usage come: with the
        file `tokenizer`, or by a provider that counts texts."""
        if self.call.dialect == "openai" and (tokenizer is not None or self.adapter.counts_text):
            self._tokenizer, self._heard = None if tokenizer is None else Path(tokenizer), bytearray()

    def hear(self, out: bytes) -> None:
        """One read of the stream, as it is passed on."""
        if self.keeping is not None:
            self.keeping.hear(out)
        heard = self._heard
        if heard is not None and len(heard) < HEARD_BYTES:
            heard += out

    async def count_heard(self) -> None:
        """Counts with the model's tokenizer what a stream without usage has sent; in a thread, for it may be long."""
        scanner = self.scanner
        if self._heard is None or scanner is None or scanner.usage is not None:
            return
        heard, self._heard = bytes(self._heard), None
        if self._tokenizer is not None:
            self._counted = await asyncio.to_thread(count_stream, self._tokenizer, heard, scanner.size)
        elif heard:
            self._counted = await self._counted_there(heard, scanner.size)

    async def _counted_there(self, heard: bytes, size: int) -> int | None:
        text = "".join(text_of(heard))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COUNT_WAIT_S):
                count = await self.adapter.count_text(self.route.provider, self.route.model, text)
                return None if count is None else in_proportion(count, heard, size)
        return None

    def estimate(self, output_tokens: int) -> Usage:
        return Usage(input=self.call.input_tokens, output=output_tokens)

    def outcome(
        self,
        status: str,
        *,
        usage: Usage | None = None,
        error: str | None = None,
        tier: str = "default",
        estimated: bool = False,
    ) -> None:
        self.account.outcome(
            self.sequence, status, began_ns=self.began_ns, usage=usage, error=error, tier=tier, estimated=estimated
        )

    async def leave(self) -> None:
        """The caller is gone: the provider is told to stop, and what it produced is billed; closes the request."""
        usage = await self.releasing(self._stopped())
        if usage is None:
            self.close_partial(CANCELLED, LEFT)
        else:
            usage, estimated = self.judged(usage, self._delivered)
            self.outcome(CANCELLED, usage=usage, error=LEFT, estimated=estimated)
            estimated = estimated or usage.flaw is not None
            self.account.close(CANCELLED, answered=self.sequence, estimated=estimated, error=LEFT)
        await self.account.settle()

    async def _stopped(self) -> Usage | None:
        """The usage, where the provider was told to stop and still said it."""
        usage: Usage | None = None
        try:
            async with asyncio.timeout(CANCEL_WAIT_S):
                usage = await self.adapter.cancel(self.route.provider, self.id)
            if usage is None:
                usage = await self._drained()
            if usage is None:
                await self.count_heard()
        except TimeoutError:
            logger.warning("attempt %s: %s did not confirm the cancellation", self.id, self.route.provider_name)
        except asyncio.CancelledError:
            self.close_partial(CANCELLED, LEFT)
            raise
        return usage

    def _delivered(self) -> int:
        return 0 if self.scanner is None else self.scanner.output_tokens()

    async def _drained(self) -> Usage | None:
        """Reads the rest of the stream, for `drain_s` at most, and returns the provider's own count if it came."""
        drain_s, scanner, response = self.route.provider.settings.drain_s, self.scanner, self.response
        if not drain_s or scanner is None or response is None:
            return None
        try:
            async with asyncio.timeout(drain_s):
                while not scanner.done and (read := await response.read_chunk()) is not None:
                    self.hear(scanner.feed(read))
        except (TimeoutError, TransportError, StreamBroken) as error:
            logger.info("attempt %s: its stream was not drained to the end: %s", self.id, type(error).__name__)
        return None if scanner.usage is None else self.adapter.usage(scanner.usage)

    def close_partial(self, status: str, error: str) -> None:
        """Closes the request with what is known of an attempt that was ended from our side, flagged as an estimate.

        What we broke off before the caller saw any of it costs the caller nothing.
        """
        account = self.account
        usage, _ = self.usage_so_far()
        self.outcome(status, usage=usage, error=error, estimated=True)
        delivered = account.ttft_us is not None or status != INCOMPLETE
        account.close(status, answered=self.sequence if delivered else None, estimated=True, error=error)

    async def releasing(self, work: Awaitable[T]) -> T:
        """What `work` gives. However it ends, the connection is released.

        Not by an `await` in a `finally`, which mypyc gets wrong (docs/decisions/0019-compiled-path.md).
        """
        try:
            done = await work
        except BaseException:
            await self.release()
            raise
        await self.release()
        return done

    async def release(self) -> None:
        """Gives the connection back, or drops it when the answer was not read to its end."""
        response, self.response = self.response, None
        if response is not None:
            await response.aclose()
