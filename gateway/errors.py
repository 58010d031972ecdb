"""What a caller is told when something goes wrong: one exception, one constructor per case of the contract, one renderer.

ApiError   status, message, type, param, code, headers: OpenAI's shape, all four body fields always there

Every room of the gateway raises these for callers; `gateway/api` renders them. A message is written for the person who
has to act on it and never holds a key, a provider's header or a stack trace.
"""

from __future__ import annotations

import math

import msgspec

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
RATE_LIMIT = "rate_limit_error"
BUDGET = "budget_error"
UPSTREAM = "upstream_error"
SERVER = "server_error"

DO_NOT_RETRY = {"x-should-retry": "false"}


class ApiError(Exception):
    """An answer other than 200. `headers` go out with it; names are lower-case."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers: dict[str, str] = headers or {}

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.code or self.type}: {self.message})"


class _Body(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class _Envelope(msgspec.Struct, frozen=True):
    error: _Body


_encoder = msgspec.json.Encoder()


def render(error: ApiError) -> bytes:
    """The JSON body in OpenAI's shape."""
    return _encoder.encode(_Envelope(_Body(error.message, error.type, error.param, error.code)))


def render_event(error: ApiError) -> bytes:
    """The same as one server-sent event: what ends a stream that has already begun."""
    return b"data: " + render(error) + b"\n\n"


# 400 ---------------------------------------------------------------------------------------------------------------------


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, INVALID_REQUEST, param, code)


def invalid_json(detail: str) -> ApiError:
    return ApiError(400, f"The request body is not valid JSON: {detail}", INVALID_REQUEST, None, "invalid_json")


def context_overflow(*, limit: int, prompt_tokens: int, output_tokens: int, param: str = "messages") -> ApiError:
    """The prompt and the requested output do not fit together; the three numbers are what the caller must change."""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens. However, you requested {prompt_tokens + output_tokens} "
        f"tokens (about {prompt_tokens} in the prompt, {output_tokens} for the output). Shorten the prompt or the output.",
        INVALID_REQUEST,
        param,
        "context_length_exceeded",
    )


# 401 402 403 404 405 413 415 ---------------------------------------------------------------------------------------------


def unauthorized(
    message: str = "Incorrect API key provided. Send a valid key as 'Authorization: Bearer <key>'.",
) -> ApiError:
    return ApiError(401, message, AUTHENTICATION, None, "invalid_api_key", {"www-authenticate": "Bearer"})


def budget_exceeded(message: str, *, headers: dict[str, str] | None = None) -> ApiError:
    return ApiError(402, message, BUDGET, None, "budget_exceeded", {**DO_NOT_RETRY, **(headers or {})})


def forbidden(message: str, *, code: str, param: str | None = None) -> ApiError:
    return ApiError(403, message, PERMISSION, param, code)


def model_not_allowed(model: str) -> ApiError:
    return forbidden(f"This key may not use the model '{model}'.", code="model_not_allowed", param="model")


def ip_not_allowed() -> ApiError:
    return forbidden("This key may not be used from this address.", code="ip_not_allowed")


def model_not_found(model: str) -> ApiError:
    return ApiError(
        404,
        f"The model '{model}' does not exist here. GET /v1/models lists the models of this key.",
        INVALID_REQUEST,
        "model",
        "model_not_found",
    )


def not_found(path: str) -> ApiError:
    return ApiError(404, f"There is no endpoint at {path}.", INVALID_REQUEST, None, "not_found")


def method_not_allowed(method: str, path: str, allowed: str) -> ApiError:
    return ApiError(
        405,
        f"{method} is not allowed on {path}; use {allowed}.",
        INVALID_REQUEST,
        None,
        "method_not_allowed",
        {"allow": allowed},
    )


def body_too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"The request body is larger than {limit_bytes} bytes.",
        INVALID_REQUEST,
        None,
        "request_too_large",
        {"connection": "close"},
    )


def unsupported_encoding(encoding: str) -> ApiError:
    return ApiError(
        415,
        f"The content encoding '{encoding}' is not supported; send the body plain, or as gzip or deflate.",
        INVALID_REQUEST,
        None,
        "unsupported_encoding",
    )


# 429 ---------------------------------------------------------------------------------------------------------------------


def rate_limited(
    message: str, *, retry_after_s: float, headers: dict[str, str] | None = None, code: str = "rate_limit_exceeded"
) -> ApiError:
    """`retry_after_s` is the true wait; the header carries it rounded up to whole seconds, and exact in milliseconds."""
    wait = {
        "retry-after": str(max(1, math.ceil(retry_after_s))),
        "retry-after-ms": str(max(1, math.ceil(retry_after_s * 1000))),
    }
    return ApiError(429, message, RATE_LIMIT, None, code, {**wait, **(headers or {})})


# 5xx ---------------------------------------------------------------------------------------------------------------------


def internal() -> ApiError:
    return ApiError(
        500,
        "Something went wrong inside the gateway; the log has it under this request id.",
        SERVER,
        None,
        "internal_error",
    )


def bad_gateway(message: str, *, code: str = "upstream_error") -> ApiError:
    return ApiError(502, message, UPSTREAM, None, code)


def unavailable(message: str, *, code: str = "unavailable", retry_after_s: float | None = None) -> ApiError:
    headers = {} if retry_after_s is None else {"retry-after": str(max(1, math.ceil(retry_after_s)))}
    return ApiError(503, message, SERVER, None, code, headers)


def gateway_timeout(message: str) -> ApiError:
    return ApiError(504, message, UPSTREAM, None, "upstream_timeout")
