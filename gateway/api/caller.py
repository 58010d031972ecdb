"""The caller's end of one request: what was sent to it, whether it is still there, and what may end a wait on its behalf.

A request waits for its provider without a timer of its own. It notes the coarse time when a wait begins; the watch calls
`tick` and ends a wait by cancelling the request's task, which `interruption` then tells apart from a true cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from gateway.api.asgi import STREAM_LINES, Departure, Receive, Send, answering
from gateway.sse import KEEP_ALIVE, StreamBroken

if TYPE_CHECKING:
    from gateway.api.watch import Watch
    from gateway.services import Services
    from gateway.upstream.base import Outgoing
    from gateway.upstream.wire import Transport, UpstreamResponse

KEEP_ALIVE_S: Final = 15.0
"""After this much silence towards a streaming caller a comment is sent, so that nothing between us gives up."""
SLOW_CALLER_S: Final = 300.0
"""A caller that takes no byte for this long has left, whatever its connection says."""
MOST_ANSWER_BYTES: Final = 256 << 20

LEFT: Final = "the caller left"
STALLED: Final = "the provider sent nothing for too long"


class Interrupted(Exception):
    """A wait for the upstream was ended from outside: the caller left, or the provider was silent beyond its limit."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Caller:
    """`started` says that a status line went out. `stream_lines`, when set, lets a silence start the answer by a comment."""

    __slots__ = (
        "_alive_s", "_answers", "_departure", "_interrupt", "_limit_s", "_receive", "_sending_since_s", "_services", "_task",
        "_waiting_since_s", "_watch", "started", "stream_lines",
    )  # fmt: skip

    def __init__(self, services: Services, receive: Receive, send: Send) -> None:
        self._services = services
        self._watch: Watch = services.watch
        self._receive = receive
        self._answers = answering(send)
        self._task = asyncio.current_task()
        self._departure: Departure | None = None
        self._interrupt: str | None = None
        self._waiting_since_s = 0.0
        self._sending_since_s = 0.0
        self._limit_s = 0.0
        self._alive_s = 0.0
        self.started = False
        self.stream_lines: bytes | None = None

    def arrived(self) -> None:
        """The request is whole: from now on a message from the server can only be a departure."""
        self._departure = Departure(self._receive)
        self._watch.running.add(self)

    def done(self) -> None:
        self._watch.running.discard(self)
        if self._departure is not None:
            self._departure.stop()

    @property
    def gone(self) -> bool:
        return self._departure is not None and self._departure.gone

    def whole(self) -> bytes | None:
        """The request's body, where all of it has arrived."""
        return self._answers.whole()

    # ---- sending ----

    async def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """All of it at once; `lines` are its headers but for the length."""
        self.started = True
        await self._answers.answer(status, lines, body)

    def start_stream(self, lines: bytes) -> None:
        """The head of a stream, if it is not on its way; it goes out with the first piece."""
        if not self.started:
            self.started = True
            self._answers.begin(200, lines + STREAM_LINES)

    async def end_stream(self, body: bytes) -> None:
        await self._answers.pass_on(body, False)

    async def pass_on(self, piece: bytes) -> None:
        """More of a stream. Raises `Interrupted` when the caller has left, or takes nothing any more."""
        self._sending_since_s = self._watch.now_s
        try:
            await self._answers.pass_on(piece, True)
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._sending_since_s = 0.0
        if self._departure is not None and self._departure.gone:
            raise Interrupted(LEFT)

    # ---- waiting for the provider; each raises Interrupted ----

    async def open(self, transport: Transport, outgoing: Outgoing, limit_s: float) -> UpstreamResponse:
        """The provider's response headers. Raises `TransportError`."""
        self._limit_s, self._waiting_since_s = limit_s, self._watch.now_s
        try:
            return await transport.post(outgoing.url, outgoing.headers, outgoing.body)
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0

    async def read(self, response: UpstreamResponse, limit_s: float) -> bytes | None:
        """The next bytes of the answer, None at its end. Raises `TransportError`."""
        self._limit_s, self._waiting_since_s = limit_s, self._watch.now_s
        try:
            return await response.read_chunk()
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0

    async def read_whole(self, response: UpstreamResponse, limit_s: float) -> bytes:
        """The whole body. Raises `TransportError`, or `StreamBroken` beyond `MOST_ANSWER_BYTES`."""
        pieces: list[bytes] = []
        size = 0
        self._limit_s = limit_s
        try:
            while not response.ended:
                self._waiting_since_s = self._watch.now_s
                piece = await response.read_chunk()
                if piece is None:
                    break
                pieces.append(piece)
                size += len(piece)
                if size > MOST_ANSWER_BYTES:
                    raise StreamBroken(f"an answer of more than {MOST_ANSWER_BYTES} bytes")
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def wait_for(self, calls: Iterable[asyncio.Task[Any]], limit_s: float, within_s: float | None = None) -> None:
        """Until one of `calls` is done, or for `within_s`."""
        self._limit_s, self._waiting_since_s = limit_s, self._watch.now_s
        try:
            await asyncio.wait(calls, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0

    async def pause(self, pause_s: float) -> None:
        """Between two attempts."""
        self._limit_s, self._waiting_since_s = pause_s + 60.0, self._watch.now_s
        try:
            await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            raise self._interruption() from None
        finally:
            self._waiting_since_s = 0.0

    def _interruption(self) -> BaseException:
        """What a cancelled wait means: an interruption by the watch, or a true cancellation of the task."""
        why, self._interrupt = self._interrupt, None
        if why is None:
            return asyncio.CancelledError()
        assert self._task is not None
        self._task.uncancel()
        return Interrupted(why)

    # ---- the watch ----

    def tick(self, now_s: float) -> None:
        """Ends a wait whose caller has left or whose provider is silent beyond the limit; fills silence with comments.

        A task that sends is not interrupted (it looks for itself afterwards), unless nobody takes what it sends.
        """
        since = self._waiting_since_s
        if self._interrupt is not None:
            return
        if since:
            if self.gone:
                self._end(LEFT)
            elif now_s - since > self._limit_s:
                self._end(STALLED)
            elif self.stream_lines is not None and now_s - max(since, self._alive_s) >= KEEP_ALIVE_S:
                self._alive_s = now_s
                self._services.spawn(self._comment(self.stream_lines))
        elif self._sending_since_s and now_s - self._sending_since_s > SLOW_CALLER_S:
            self._end(LEFT)

    def _end(self, why: str) -> None:
        if self._task is not None:
            self._interrupt = why
            self._task.cancel()

    async def _comment(self, lines: bytes) -> None:
        """A comment between events, if the request still waits. Before the first content it also starts the answer."""
        if self._waiting_since_s:
            self.start_stream(lines)
            await self._answers.pass_on(KEEP_ALIVE, True)
