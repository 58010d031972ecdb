"""A provider's adapter behind another dialect: the caller's request goes up as chat, the answer comes back as the caller's.

The inner adapter speaks chat outward whatever its provider speaks, so a new provider serves every dialect, and a new dialect
reaches every provider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from billing.usage import Usage
from gateway.dialects import chat
from gateway.dialects.anthropic_answers import Untranslatable
from gateway.sse import StreamBroken, payload_of
from gateway.upstream.base import Adapter, Answer, BadAnswer, Call, Failure, Outgoing
from gateway.upstream.events import Scanner, split_events

if TYPE_CHECKING:
    from gateway.routing.provider import Provider
    from gateway.routing.routes import Route


class Writer(Protocol):
    """Chat chunks in the caller's dialect. `ending` is asked once, when the request is settled."""

    def chunk(self, chunk: chat.Chunk) -> bytes: ...
    def ending(self, usage: Usage, cost: str | None) -> bytes: ...


class Dialect(Protocol):
    name: str

    def as_chat(self, call: Call) -> Call:
        """Raises `ApiError` 400 for what chat cannot say."""
        ...

    def answer(self, call: Call, body: bytes, usage: Usage | None) -> bytes:
        """Raises `Untranslatable`."""
        ...

    def writer(self, call: Call) -> Writer: ...


class TranslatedScanner:
    """The inner scanner finds usage, errors and the end; what it lets through is written anew."""

    def __init__(self, inner: Scanner, writer: Writer) -> None:
        self._inner = inner
        self._writer = writer
        self.tail = b""

    @property
    def usage(self) -> bytes | None:
        return self._inner.usage

    @property
    def service_tier(self) -> str | None:
        return self._inner.service_tier

    @property
    def error(self) -> bytes | None:
        return self._inner.error

    @property
    def done(self) -> bool:
        return self._inner.done

    @property
    def truncated(self) -> bool:
        return self._inner.truncated

    @property
    def finished(self) -> bool:
        return self._inner.finished

    @property
    def size(self) -> int:
        return self._inner.size

    def feed(self, read: bytes) -> bytes:
        return self._written(self._inner.feed(read))

    def end(self) -> bytes:
        return self._written(self._inner.end())

    def output_tokens(self) -> int:
        return self._inner.output_tokens()

    def ending(self, usage: Usage, cost: str | None, *, wanted: bool) -> bytes:
        return self._writer.ending(usage, cost)

    def _written(self, events: bytes) -> bytes:
        """Raises `StreamBroken`."""
        out: list[bytes] = []
        for event in split_events(events):
            data = payload_of(event)
            if not data:
                out.append(event + b"\n\n")  # a comment: it keeps the connection alive for this caller too
                continue
            try:
                chunk = chat.CHUNK.decode(data)
            except (msgspec.DecodeError, RecursionError) as error:
                raise StreamBroken(f"an event that is no chunk: {error}") from error
            if chunk.choices:
                out.append(self._writer.chunk(chunk))
        return b"".join(out)


class TranslatedAdapter:
    def __init__(self, inner: Adapter, dialect: Dialect) -> None:
        self.kind = inner.kind
        self.native = inner.native
        self.surfaces = inner.surfaces
        self.root_suffix = inner.root_suffix
        self._inner = inner
        self._dialect = dialect

    @property
    def counter(self) -> Adapter:
        return TranslatedAdapter(self._inner.counter, self._dialect)

    def credentials(self, secret: str) -> dict[str, str]:
        return self._inner.credentials(secret)

    @property
    def fixed_headers(self) -> dict[str, str]:
        return self._inner.fixed_headers

    def check_surface(self, call: Call, route: Route) -> None:
        self._inner.check_surface(call, route)

    def prepare(self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str) -> Outgoing:
        self.check_surface(call, route)
        cap = output_cap if output_cap is not None else call.output_cap
        return self._inner.prepare(
            self._dialect.as_chat(call), route, request_id=request_id, output_cap=cap, team_id=team_id
        )

    def scanner(self, call: Call) -> Scanner:
        return TranslatedScanner(self._inner.scanner(call), self._dialect.writer(call))

    def as_events(self, body: bytes) -> bytes:
        return self._inner.as_events(body)

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        answer = self._inner.read_answer(call, content_type, body)
        if call.surface == "count_tokens":
            return answer
        try:
            said = self._dialect.answer(call, answer.body, answer.usage)
        except Untranslatable as error:
            raise BadAnswer(str(error)) from error
        return Answer(said, answer.usage, answer.service_tier, answer.output_bytes)

    def usage(self, raw: bytes) -> Usage | None:
        return self._inner.usage(raw)

    def failure(self, provider: Provider, status: int, retry_after: float | None, body: bytes) -> Failure:
        return self._inner.failure(provider, status, retry_after, body)

    def in_band_failure(self, provider: Provider, error: bytes) -> Failure:
        return self._inner.in_band_failure(provider, error)

    async def cancel(self, provider: Provider, request_id: str) -> Usage | None:
        return await self._inner.cancel(provider, request_id)

    @property
    def counts_text(self) -> bool:
        return self._inner.counts_text

    async def count_text(self, provider: Provider, model: str, text: str) -> int | None:
        return await self._inner.count_text(provider, model, text)
