"""Any OpenAI-compatible provider: OpenAI, DeepSeek, Gemini's compatible endpoint, vLLM, SGLang, TGI, llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
from msgspec import Raw
from mypy_extensions import mypyc_attr

from billing.usage import Usage
from gateway import errors
from gateway.errors import ApiError
from gateway.sse import StreamScanner
from gateway.upstream import policy, reshape
from gateway.upstream.base import Adapter, Answer, BadAnswer, Call, Failure, Outgoing, delivered
from gateway.upstream.estimate import estimate, read_estimate
from gateway.upstream.redact import ProviderError, read_error, read_error_object, redact
from gateway.upstream.shapes import WholeAnswer, given
from gateway.upstream.usage import from_openai

if TYPE_CHECKING:
    from gateway.routing.provider import Provider
    from gateway.routing.routes import Route
    from gateway.upstream.events import Scanner

MOST_RETRY_AFTER_S: Final = 3600.0
QUOTA_CODES: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded", "insufficient_balance"}
)
CAP_FIELDS: Final = ("max_completion_tokens", "max_tokens")
MINIMA: Final = frozenset({"min_tokens", "min_new_tokens", "min_length"})
"""Servers may let these win over a cap below them."""
CALLERS_FAULT: Final = frozenset({400, 413, 422})

_encode = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, Raw])
_minimum = msgspec.json.Decoder(int | None)
_TRUE: Final = Raw(b"true")
_INCLUDE_USAGE: Final = Raw(b'{"include_usage":true}')


_whole = msgspec.json.Decoder(WholeAnswer)


def tier_of(name: str | None) -> str:
    """The price book's name of the tier that a provider says it served."""
    return "default" if name is None or name in ("auto", "default", "standard", "") else name[:64]


_EMPTY: Final = Raw(b'""')


@mypyc_attr(allow_interpreted_subclasses=True)
class OpenAIAdapter:
    """`fields` of a call are sent as they came, but for the model's name, the request for usage, a cap and rule 32d."""

    kind: ClassVar[str] = "openai"
    native: ClassVar[str] = "openai"
    surfaces: ClassVar[frozenset[str]] = frozenset({"chat", "completions", "embeddings", "messages", "responses"})
    root_suffix: ClassVar[str] = ""
    cap_field: ClassVar[str] = "max_tokens"
    caches_prefixes: ClassVar[bool] = False
    """Whether it keeps prefixes for all who call with one credential: then each team's are salted apart."""

    def credentials(self, secret: str) -> dict[str, str]:
        return {"authorization": f"Bearer {secret}"}

    @property
    def fixed_headers(self) -> dict[str, str]:
        return {}

    @property
    def counter(self) -> Adapter:
        return OpenAICounter()

    def check_surface(self, call: Call, route: Route) -> None:
        """Raises `ApiError` 400 when this kind of provider has no counterpart of the caller's endpoint."""
        if call.surface not in self.surfaces:
            raise errors.bad_request(
                f"The provider '{route.provider_name}' of the model '{call.model}' has no counterpart of this endpoint;"
                " use another model.",
                param="model",
                code="unsupported_endpoint",
            )

    def prepare(self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str) -> Outgoing:
        fields = call.fields.copy()
        if call.model != route.model:
            fields["model"] = route.model_json
        if call.streamed:
            fields["stream_options"] = _with_usage(fields.get("stream_options"))
        if output_cap is not None:
            self._cap(fields, call, route.provider, output_cap)
        if self.caches_prefixes and not route.provider.settings.share_prefix_cache:
            fields.setdefault("cache_salt", _EMPTY)
        policy.apply(fields, team_id)
        return Outgoing(self.address(route, call.path), self.headers(route.provider, request_id), _encode(fields))

    def address(self, route: Route, path: str) -> str:
        """Where a call of this model goes; `path` is below the base URL."""
        return route.provider.url(path)

    def headers(self, provider: Provider, request_id: str) -> dict[str, str]:
        return {**provider.headers, "x-request-id": request_id}

    def scanner(self, call: Call) -> Scanner:
        return StreamScanner(strip_usage=not call.wants_usage, choices=call.choices)

    def usage(self, raw: bytes) -> Usage | None:
        return from_openai(raw)

    def as_events(self, body: bytes) -> bytes:
        return reshape.split(body)

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        """Raises `BadAnswer`."""
        if content_type.startswith("text/event-stream") or body.startswith(b"data:"):
            try:
                body = reshape.aggregate(body)
            except reshape.Unreadable as error:
                raise BadAnswer(str(error)) from error
        try:
            whole = _whole.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadAnswer("the provider's answer is no JSON object") from error
        if given(whole.error):
            raise BadAnswer("the provider answered 200 with an error", bytes(whole.error))
        usage = self.usage(bytes(whole.usage)) if given(whole.usage) else None
        return Answer(body, usage, tier_of(whole.service_tier), delivered(call, body, usage))

    def failure(self, provider: Provider, status: int, retry_after: float | None, body: bytes) -> Failure:
        said = read_error(body)
        code = f"http_{status}"
        if status in (401, 403):
            return _refused_us(provider, code)
        if status == 402 or _is_quota(said):
            return _out_of_quota(provider, code)
        if status == 429:
            wait = min(retry_after if retry_after is not None else 1.0, MOST_RETRY_AFTER_S)
            error = errors.rate_limited(
                f"The provider '{provider.name}' is limiting its callers; try again later.",
                retry_after_s=wait,
                code="upstream_rate_limited",
            )
            return Failure(error, True, True, retry_after, code, key_wait_s=wait)
        if status in CALLERS_FAULT:
            return Failure(self._callers_fault(provider, status, said), False, False, None, code)
        if status == 404:
            error = errors.bad_gateway(
                f"The provider '{provider.name}' does not know this model or endpoint.", code="upstream_not_found"
            )
            return Failure(error, True, False, None, code)
        if status in (408, 504):
            error = errors.gateway_timeout(f"The provider '{provider.name}' timed out.")
            return Failure(error, True, True, retry_after, code)
        if status == 503:
            error = errors.unavailable(
                f"The provider '{provider.name}' is overloaded or down; try again later.",
                code="upstream_unavailable",
                retry_after_s=min(retry_after or 1.0, MOST_RETRY_AFTER_S),
            )
            return Failure(error, True, True, retry_after, code)
        error = errors.bad_gateway(f"The provider '{provider.name}' failed with status {status}.")
        return Failure(error, status >= 500 or status == 409, True, retry_after, code)

    def in_band_failure(self, provider: Provider, error: bytes) -> Failure:
        """An error object inside a 200. Its words are the provider's, redacted; a key or quota problem is ours to word."""
        said = read_error_object(error)
        if said.code in ("401", "403", "invalid_api_key") or said.type in ("authentication_error", "permission_error"):
            return _refused_us(provider, "in_band_auth")
        if _is_quota(said):
            return _out_of_quota(provider, "in_band_quota")
        message = redact(said.message, provider.secrets) or "no reason given"
        wording = f"The provider '{provider.name}' ended the answer with an error: {message}"
        return Failure(errors.bad_gateway(wording), True, True, None, "in_band_error")

    async def cancel(self, provider: Provider, request_id: str) -> Usage | None:
        """Dropping the connection is all there is; it says nothing about usage."""
        return None

    @property
    def counts_text(self) -> bool:
        return False

    async def count_text(self, provider: Provider, model: str, text: str) -> int | None:
        return None

    def _callers_fault(self, provider: Provider, status: int, said: ProviderError) -> ApiError:
        message = redact(said.message, provider.secrets) or f"The provider refused the request with status {status}."
        code = "context_length_exceeded" if _is_overflow(said) else _label(said.code)
        param = redact(said.param, provider.secrets)[:200] if said.param else None
        return ApiError(status, message, errors.INVALID_REQUEST, param, code)

    def _cap(self, fields: dict[str, Raw], call: Call, provider: Provider, output_cap: int) -> None:
        """One cap, and the one that was reserved. Raises `ApiError` 400 when the caller asks for more at the least."""
        for minimum in MINIMA.intersection(fields):
            _check_minimum(minimum, fields[minimum], output_cap)
        named: list[str] = [name for name in CAP_FIELDS if name in fields]
        if len(named) != 1 or bytes(fields[named[0]]) == b"null":
            for name in named:
                del fields[name]
            named = [self._own_cap_field(call, provider)]
        fields[named[0]] = Raw(b"%d" % output_cap)

    def _own_cap_field(self, call: Call, provider: Provider) -> str:
        """OpenAI's reasoning models refuse `max_tokens`; most compatible servers know nothing else."""
        native = provider.base_url is not None and "openai." in provider.base_url and call.path == "/chat/completions"
        return "max_completion_tokens" if native else self.cap_field


class OpenAICounter(OpenAIAdapter):
    """Such servers count nothing by themselves: the estimate stands in for a count."""

    surfaces = frozenset({"count_tokens"})

    def prepare(self, call: Call, route: Route, *, request_id: str, output_cap: int | None, team_id: str) -> Outgoing:
        return estimate(call, route)

    def read_answer(self, call: Call, content_type: str, body: bytes) -> Answer:
        return read_estimate(body)


def _check_minimum(name: str, raw: Raw, output_cap: int) -> None:
    try:
        least = _minimum.decode(raw) or 0
    except msgspec.DecodeError as error:
        raise errors.bad_request(f"'{name}' must be an integer.", param=name) from error
    if least > output_cap:
        raise errors.bad_request(
            f"'{name}' is {least}, but at most {output_cap} output tokens may come; ask for less.", param=name
        )


def _with_usage(options: Raw | None) -> Raw:
    """`stream_options` with usage asked for and every other field kept. Raises `ApiError` when it is no object."""
    if options is None or bytes(options) == b"null":
        return _INCLUDE_USAGE
    try:
        fields = _fields.decode(options)
    except (msgspec.DecodeError, RecursionError) as error:
        raise errors.bad_request("'stream_options' must be an object", param="stream_options") from error
    fields["include_usage"] = _TRUE
    return Raw(_encode(fields))


def _is_quota(said: ProviderError) -> bool:
    return said.code in QUOTA_CODES or said.type in QUOTA_CODES


def _is_overflow(said: ProviderError) -> bool:
    return said.code == "context_length_exceeded" or "maximum context length" in said.message


def _label(code: str | None) -> str | None:
    """A code is a short word; anything else could be prose that quotes something."""
    return code if code is not None and len(code) <= 64 and code.replace("_", "").replace("-", "").isalnum() else None


def _refused_us(provider: Provider, reason: str) -> Failure:
    error = errors.bad_gateway(
        f"The provider '{provider.name}' refused the gateway's own credentials; the operator has to look at them.",
        code="upstream_auth",
    )
    return Failure(error, True, True, None, reason, everyones=True, key_wait_s=QUOTA_COOLDOWN_S)


def _out_of_quota(provider: Provider, reason: str) -> Failure:
    error = errors.bad_gateway(
        f"The gateway's account at the provider '{provider.name}' is out of quota; the operator has to look at it.",
        code="upstream_quota",
    )
    return Failure(error, True, True, QUOTA_COOLDOWN_S, reason, everyones=True, key_wait_s=QUOTA_COOLDOWN_S)


QUOTA_COOLDOWN_S: Final = 300.0
