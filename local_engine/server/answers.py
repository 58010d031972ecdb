"""Generations as OpenAI's bodies: whole or streamed, chat or plain completions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..generation import Delta, Generation
from ..sequence import FinishReason
from .http import HttpError, Request, error_body, event
from .requests import StreamOptions
from .service import Service, now_s, usage_body

SSE = b"text/event-stream; charset=utf-8"
_SSE_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
DONE = b"data: [DONE]\n\n"

ChoiceBody = Callable[[int, str, Delta | None], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Shape:
    """How one surface words its answers."""

    id_prefix: str
    object: str
    chunk_object: str
    whole: Callable[[int, str, Delta], dict[str, Any]]
    piece: Callable[[Delta], dict[str, Any]]
    opening: Callable[[int], dict[str, Any]] | None
    """The first chunk of a choice, before any text."""


def _finish(delta: Delta) -> dict[str, Any]:
    return {"logprobs": None, "finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}


CHAT = Shape(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    whole=lambda index, text, end: {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        **_finish(end),
    },
    piece=lambda delta: {
        "index": delta.index,
        "delta": {"content": delta.text} if delta.text else {},
        **_finish(delta),
    },
    opening=lambda index: {
        "index": index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    },
)
COMPLETION = Shape(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    whole=lambda index, text, end: {"index": index, "text": text, **_finish(end)},
    piece=lambda delta: {"index": delta.index, "text": delta.text, **_finish(delta)},
    opening=None,
)


class Answer:
    """Sends one generation to its caller. The caller's departure aborts it."""

    def __init__(self, service: Service, request: Request, generation: Generation, shape: Shape, model: str) -> None:
        self._service = service
        self._request = request
        self._generation = generation
        self._shape = shape
        self._base = {"id": shape.id_prefix + request.id, "created": now_s(), "model": model}
        self.echo: list[str] = []
        """Text put before each choice's own, by prompt."""

    async def send(self, stream: StreamOptions | None, *, streamed: bool) -> None:
        work = asyncio.create_task(self._stream(stream) if streamed else self._whole())
        gone = asyncio.create_task(self._request.disconnected())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            gone.cancel()
            work.cancel()
            if not self._generation.ended.is_set():
                self._service.engine.abort(self._generation)

    async def _whole(self) -> None:
        texts = [self._echo(choice.index) for choice in self._generation.choices]
        ends: list[Delta | None] = [None] * len(texts)
        while deltas := await self._generation.next():
            for delta in deltas:
                texts[delta.index] += delta.text
                if delta.finish_reason is not None:
                    ends[delta.index] = delta
        self._raise_failure([end for end in ends if end is not None])
        choices = [self._shape.whole(index, texts[index], end) for index, end in enumerate(ends) if end is not None]
        await self._request.respond_json(
            {
                **self._base,
                "object": self._shape.object,
                "choices": choices,
                "usage": usage_body(self._generation.usage),
            }
        )

    async def _stream(self, options: StreamOptions | None) -> None:
        deltas = await self._generation.next()
        self._raise_failure(deltas)
        await self._request.start(200, SSE, _SSE_HEADERS)
        opening = b"".join(self._openings(options))
        while deltas:
            data, failure = self._events(deltas, options)
            if failure is not None:
                await self._request.send(opening + data + event(error_body(failure)), more=False)
                return
            if opening or data:
                await self._request.send(opening + data)
            opening = b""
            deltas = await self._generation.next()
        if self._generation.error is not None:
            await self._request.send(event(error_body(_failure(self._generation.error))), more=False)
            return
        tail = DONE
        if options is not None and options.include_usage:
            tail = event(self._chunk([], usage_body(self._generation.usage))) + DONE
        await self._request.send(tail, more=False)

    def _openings(self, options: StreamOptions | None) -> list[bytes]:
        opening = self._shape.opening
        events = []
        for choice in self._generation.choices:
            if opening is not None:
                events.append(event(self._chunk([opening(choice.index)], self._running_usage(options), options)))
            elif text := self._echo(choice.index):
                piece = self._shape.piece(Delta(choice.index, text, ()))
                events.append(event(self._chunk([piece], self._running_usage(options), options)))
        return events

    def _events(self, deltas: list[Delta], options: StreamOptions | None) -> tuple[bytes, HttpError | None]:
        """The deltas as events; with a failure in place of the first one that brought an error."""
        events: list[bytes] = []
        for delta in deltas:
            if delta.error is not None:
                return b"".join(events), _failure(delta.error)
            if delta.text or delta.finish_reason is not None:
                chunk = self._chunk([self._shape.piece(delta)], self._running_usage(options), options)
                events.append(event(chunk))
        return b"".join(events), None

    def _chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, Any] | None, options: StreamOptions | None = None
    ) -> dict[str, Any]:
        chunk = {**self._base, "object": self._shape.chunk_object, "choices": choices}
        if usage is not None or (options is not None and options.include_usage):
            chunk["usage"] = usage
        return chunk

    def _running_usage(self, options: StreamOptions | None) -> dict[str, Any] | None:
        if options is None or not options.continuous_usage_stats:
            return None
        return usage_body(self._generation.usage)

    def _echo(self, index: int) -> str:
        return self.echo[index // self._generation.request.n] if self.echo else ""

    def _raise_failure(self, deltas: list[Delta]) -> None:
        """An error before the first byte is a plain answer with its status."""
        message = self._generation.error
        for delta in deltas:
            if delta.finish_reason is FinishReason.ERROR:
                message = delta.error
        if message is not None:
            raise _failure(message)


def _failure(message: str) -> HttpError:
    return HttpError(500, message, kind="server_error", code="engine_error")
