"""The adapter interface: what a kind of provider has to say about one request. Adding a provider is one file of this shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Raw, Struct

from billing.usage import Usage
from gateway import spoken
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.routing.provider import Provider
    from gateway.routing.routes import Route
    from gateway.upstream.events import Scanner
    from gateway.upstream.wire import Transport


@dataclass(frozen=True, slots=True)
class Form:
    """A multipart body around the name of its model, byte for byte as it came."""

    content_type: str
    before: bytes
    after: bytes


class Call(Struct):
    """One caller's request, parsed once. `fields` are the raw JSON values by name; unknown ones pass through untouched."""

    surface: str
    path: str  # below the provider's base URL, in the OpenAI dialect: "/chat/completions"
    fields: dict[str, Raw]
    model: str
    streamed: bool
    wants_usage: bool
    choices: int
    output_cap: int | None  # the caller's own maximum of output tokens per choice, if any
    input_tokens: int  # estimate, erring upward
    generated: int = 0  # choices that the provider generates (`best_of`); 0 means `choices`
    speaks: bool = True  # whether the answer has output, so that a cap has a meaning
    form: Form | None = None  # a multipart body, in whose place `fields` are only looked at
    told: int = 0  # events of the answer so far, where the caller's dialect numbers them
    dialect: str = "openai"  # what `fields` are written in
    over: Callable[[Adapter], Adapter] | None = None  # how a provider's adapter is made to speak it; None: as it is

    def name_model(self, name: str) -> None:
        """The model by its own name, where the caller used an alias."""
        self.model = name
        self.fields["model"] = Raw(msgspec.json.encode(name))


class Outgoing(Struct, frozen=True):
    """What goes over the wire for one attempt."""

    url: str
    headers: dict[str, str]
    body: bytes
    own: Transport | None = None  # what answers in the provider's place: nothing is sent


class Answer(Struct, frozen=True):
    """A whole answer read by an adapter. `usage` is None when the provider reported none; `body` is what the caller gets.

    `output_bytes` is the size of its text (`delivered`), which is looked for only where usage leaves a doubt.
    """

    body: bytes
    usage: Usage | None
    service_tier: str
    output_bytes: int
    content_type: str | None = None  # where it is no JSON


def delivered(call: Call, body: bytes, usage: Usage | None) -> int:
    """The bytes of text in an answer in chat's form, where its usage does not say how much output there is; else 0."""
    if not call.speaks or (usage is not None and usage.total_output):
        return 0
    return spoken.size_of(spoken.text_of_answer(body))


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that did not answer. `error` is what the caller gets if nothing else does."""

    error: ApiError
    retryable: bool  # another route (or, after a pause, the same) may do better
    blames_route: bool  # counts against the route's health
    retry_after_s: float | None = None
    reason: str = ""  # short, for the row and the log; never holds a key
    everyones: bool = False  # anybody would have met it, whatever was asked; any other may be the request's own
    key_wait_s: float | None = None  # the key that was used is to be left alone so long, where the provider has others
    stale: bool = False  # the connection was dead before it was used: a new one is worth a call at once
    turned: bool = False  # another key is in use now: the same route is worth a call at once


class BadAnswer(Exception):
    """A 200 whose body is no answer. `error` is the raw error object, if the body was one."""

    def __init__(self, message: str, error: bytes | None = None) -> None:
        super().__init__(message)
        self.error = error


class Adapter(Protocol):
    """All methods are pure but for `cancel` and `count_text`. `prepare` and `check_surface` raise `ApiError` for what the
    provider cannot take, `read_answer` `BadAnswer`, `as_events` `reshape.Unreadable`; the others nothing.

    `native` is the dialect that goes to the provider untouched, `surfaces` are those that it can serve, `root_suffix` is
    what a base URL may leave out.
    """

    @property
    def kind(self) -> str: ...
    @property
    def native(self) -> str: ...
    @property
    def surfaces(self) -> frozenset[str]: ...
    @property
    def root_suffix(self) -> str: ...
    @property
    def fixed_headers(self) -> dict[str, str]: ...
    @property
    def counter(self) -> Adapter:
        """What counts the tokens of a prompt at the same provider."""
        ...

    def credentials(self, secret: str) -> dict[str, str]: ...
    def check_surface(self, call: Call, route: Route) -> None:
        """Raises `ApiError` 400 when this kind of provider has no counterpart of the caller's endpoint."""
        ...

    def prepare(
        self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str
    ) -> Outgoing: ...
    def scanner(self, call: Call) -> Scanner: ...
    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer: ...
    def as_events(self, body: bytes) -> bytes:
        """A whole answer to a request for a stream, as the stream that the provider should have sent."""
        ...

    def usage(self, raw: bytes) -> Usage | None: ...
    def failure(self, provider: Provider, status: int, retry_after: float | None, body: bytes) -> Failure: ...
    def in_band_failure(self, provider: Provider, error: bytes) -> Failure: ...
    async def cancel(self, provider: Provider, request_id: str) -> Usage | None:
        """Stops the request at the provider; its final usage where the provider can tell."""
        ...

    @property
    def counts_text(self) -> bool:
        """Whether the provider says how many tokens a text has."""
        ...

    async def count_text(self, provider: Provider, model: str, text: str) -> int | None:
        """By the provider's own tokenizer; None where it does not answer."""
        ...
