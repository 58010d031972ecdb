"""Generations as OpenAI's bodies: whole or streamed, chat or plain completions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..generation import Delta, Generation, joined
from ..sequence import FinishReason
from .http import HttpError, Request, error_body, event
from .requests import StreamOptions
from .service import Service, now_s, usage_body
from .surfaces import Surface

SSE = b"text/event-stream; charset=utf-8"
_SSE_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
DONE = b"data: [DONE]\n\n"


class Answer:
    """Sends one generation to its caller. The caller's departure aborts it."""

    def __init__(
        self, service: Service, request: Request, generation: Generation, surface: Surface, model: str
    ) -> None:
        self._service = service
        self._request = request
        self._generation = generation
        self._surface = surface
        self._base = {"id": surface.id_prefix + request.id, "created": now_s(), "model": model}

    async def send(self, stream: StreamOptions | None, *, streamed: bool) -> None:
        answering = self._stream(stream) if streamed else self._whole()
        await abort_when_gone(self._service, self._request, self._generation, answering)

    async def _whole(self) -> None:
        news: list[list[Delta]] = [[] for _ in self._generation.choices]
        while deltas := await self._generation.next():
            self._raise_failure(deltas)
            for delta in deltas:
                news[delta.index].append(delta)
        self._raise_failure([])
        await self._request.respond_json(
            {
                **self._base,
                "object": self._surface.object,
                "choices": [self._surface.whole(joined(deltas)) for deltas in news],
                "usage": usage_body(self._generation.usage),
                **self._surface.extra(self._generation),
            }
        )

    async def _stream(self, options: StreamOptions | None) -> None:
        deltas = await self._generation.next()
        self._raise_failure(deltas)
        await self._request.start(200, SSE, _SSE_HEADERS)
        opening = b"".join(self._openings(options))
        while deltas:
            data, failed = self._events(deltas, options)
            if failed is not None:
                await self._request.send(opening + data + event(error_body(failed)), more=False)
                return
            if opening or data:
                await self._request.send(opening + data)
            opening = b""
            deltas = await self._generation.next()
        if self._generation.error is not None:
            await self._request.send(event(error_body(failure(self._generation.error))), more=False)
            return
        tail = DONE
        if options is not None and options.include_usage:
            tail = event(self._chunk([], usage_body(self._generation.usage))) + DONE
        await self._request.send(tail, more=False)

    def _openings(self, options: StreamOptions | None) -> list[bytes]:
        usage = self._running_usage(options)
        bodies = [self._surface.opening(choice) for choice in self._generation.choices]
        return [event(self._chunk([body], usage, options)) for body in bodies if body is not None]

    def _events(self, deltas: list[Delta], options: StreamOptions | None) -> tuple[bytes, HttpError | None]:
        """The deltas as events; with a failure in place of the first one that brought an error."""
        events: list[bytes] = []
        for delta in deltas:
            if delta.error is not None:
                return b"".join(events), failure(delta.error)
            body = self._surface.piece(delta)
            if body is not None:
                events.append(event(self._chunk([body], self._running_usage(options), options)))
        return b"".join(events), None

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None, options: StreamOptions | None = None
    ) -> dict[str, Any]:
        chunk = {**self._base, "object": self._surface.chunk_object, "choices": choices}
        if usage is not None or (options is not None and options.include_usage):
            chunk["usage"] = usage
        return chunk

    def _running_usage(self, options: StreamOptions | None) -> dict[str, Any] | None:
        if options is None or not options.continuous_usage_stats:
            return None
        return usage_body(self._generation.usage)

    def _raise_failure(self, deltas: list[Delta]) -> None:
        """An error before the first byte is a plain answer with its status."""
        for delta in deltas:
            if delta.error is not None:
                raise failure(delta.error, refused=delta.finish_reason is FinishReason.REFUSED)
        if self._generation.error is not None:
            raise failure(self._generation.error)


def failure(message: str, *, refused: bool = False) -> HttpError:
    """`refused`: it is the request's own fault."""
    if refused:
        return HttpError(400, message)
    return HttpError(500, message, kind="server_error", code="engine_error")


async def abort_when_gone(
    service: Service, request: Request, generation: Generation, answering: Coroutine[Any, Any, None]
) -> None:
    """Awaits the answer; when the caller leaves first, or the answer fails, what is left of the generation is aborted."""
    work = asyncio.create_task(answering)
    gone = asyncio.create_task(request.disconnected())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
    finally:
        gone.cancel()
        work.cancel()
        if not generation.ended.is_set():
            service.engine.abort(generation)
