"""What an operator is told when something goes wrong: every failure in the one error shape, with the field to mend in `param`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sqlalchemy.exc
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.types import ExceptionHandlersMap

from billing.errors import BillingError, Conflict, NotFound
from gateway import errors
from gateway.admin.refusal_words import in_words
from gateway.errors import INVALID_REQUEST, ApiError
from gateway.ids import new_request_id

logger = logging.getLogger(__name__)

_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")
_NOT_REPRESENTABLE = "22021"
"""PostgreSQL's character_not_in_repertoire: a NUL inside a text."""
_BEYOND = frozenset({"22000", "22003"})
"""Its numeric_value_out_of_range, and what the client library refuses to send it; SQLite's raises `OverflowError`."""
_MISSING_FIELD = re.compile(r"missing required field `([^`]*)`")


class Replayed(Exception):
    """This write was done already under the same Idempotency-Key: `answer` is what it was answered."""

    def __init__(self, answer: str) -> None:
        super().__init__("done already under this Idempotency-Key")
        self.answer = answer


def invalid(message: str, param: str | None) -> ApiError:
    """422: the body or a query parameter cannot be accepted as it is."""
    return ApiError(422, message, INVALID_REQUEST, param, "invalid_value")


def missing(what: str, identifier: object) -> ApiError:
    """404: nothing stands under this id."""
    return ApiError(404, f"There is no {what} {identifier}.", INVALID_REQUEST, "id", "not_found")


def conflict(message: str, param: str | None = None) -> ApiError:
    """409: what is there does not allow it."""
    return ApiError(409, message, INVALID_REQUEST, param, "conflict")


def changed_meanwhile(current: str) -> ApiError:
    """412: If-Match names another version than the one that stands there."""
    message = f"If-Match: somebody changed it meanwhile; what stands there now has the ETag {current}. Read it again."
    return ApiError(412, message, INVALID_REQUEST, "If-Match", "changed_meanwhile")


def database_away() -> ApiError:
    return errors.unavailable(
        "The database cannot be reached; nothing was changed. Try again.", code="database_unavailable", retry_after_s=2
    )


def to_api_error(error: Exception, kinds: Mapping[str, Any] = MappingProxyType({})) -> ApiError:
    """The answer for any exception that a handler let go; `kinds` are the types of the handler's parameters, by name."""
    match error:
        case ApiError():
            return error
        case Conflict():
            return conflict(str(error), error.field)
        case NotFound(field="id"):
            return ApiError(404, str(error), INVALID_REQUEST, "id", "not_found")
        case BillingError():
            return invalid(str(error), error.field)
        case ValidationException():
            return _validation(error, kinds)
        case HTTPException(status_code=400):
            return errors.invalid_json(error.detail)
        case RecursionError():
            return errors.invalid_json("it is nested too deeply")
        case HTTPException():
            return ApiError(error.status_code, error.detail, INVALID_REQUEST, None, None, dict(error.headers or {}))
        case sqlalchemy.exc.DBAPIError() if getattr(error.orig, "sqlstate", None) == _NOT_REPRESENTABLE:
            return invalid("A value has a character that no stored text can have.", None)
        case sqlalchemy.exc.DBAPIError() if getattr(error.orig, "sqlstate", None) in _BEYOND:
            return invalid("A number is beyond 64 bits.", None)
        case OverflowError():
            return invalid("A number is beyond 64 bits.", None)
        case sqlalchemy.exc.OperationalError() | sqlalchemy.exc.InterfaceError() | OSError():
            logger.warning("an admin request met no database: %s", type(error).__name__)
            return database_away()
        case _:
            logger.error("an admin request failed", exc_info=error)
            return errors.internal()


def _validation(error: ValidationException, kinds: Mapping[str, Any]) -> ApiError:
    """Litestar's list of what does not fit; the first of it names the field by its path, as `limits.max_parallel`."""
    details: list[dict[str, Any]] = [item for item in error.extra or [] if isinstance(item, dict)]
    if not details:
        return invalid(error.detail, None)
    message, key = str(details[0].get("message", "")), str(details[0].get("key", ""))
    path = "" if key == "data" else key
    if message == "'data'":
        return invalid("A JSON object is needed as the body.", None)
    for pattern in (_UNKNOWN_FIELD, _MISSING_FIELD):
        if found := pattern.search(message):
            param = ".".join(part for part in (path, found[1]) if part)
            return invalid(f"{param}: unknown field" if pattern is _UNKNOWN_FIELD else f"{param}: is required", param)
    body_or_query = ("data", path) if "data" in kinds and path not in kinds else (path, "")
    said = in_words(message, kinds.get(body_or_query[0], Any), body_or_query[1])
    return invalid(f"{path}: {said}" if path else said, path or None)


def handle(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    if isinstance(error, Replayed):
        headers = {"idempotent-replayed": "true", "x-request-id": str(new_request_id())}
        status = getattr(request.route_handler, "status_code", 200)
        return Response(error.answer.encode(), status_code=status, headers=headers, media_type="application/json")
    answer = _unrouted(request, error) or to_api_error(
        error, _kinds(request) if isinstance(error, ValidationException) else {}
    )
    headers = {**answer.headers, "x-request-id": str(new_request_id())}
    return Response(errors.render(answer), status_code=answer.status, headers=headers, media_type="application/json")


def _kinds(request: Request[Any, Any, Any]) -> Mapping[str, Any]:
    return {name: field.raw for name, field in request.route_handler.parsed_fn_signature.parameters.items()}


def _unrouted(request: Request[Any, Any, Any], error: Exception) -> ApiError | None:
    match error:
        case NotFoundException():
            return errors.not_found(request.url.path)
        case MethodNotAllowedException():
            allowed = (error.headers or {}).get("allow", "another method")
            return errors.method_not_allowed(request.method, request.url.path, allowed)
        case _:
            return None


HANDLERS: ExceptionHandlersMap = {Exception: handle, HTTPException: handle}
