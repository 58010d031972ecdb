"""What stands before every admin route: who may enter, and that nothing in the query is misspelt.

Both hang on the router, not on the routes, so that a new route is closed until somebody opens it.
"""

from __future__ import annotations

from typing import Any, Final

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler
from litestar.types import Guard

from gateway import errors
from gateway.access.admin_key import AdminKey
from gateway.access.authenticator import bearer_token
from gateway.admin.failures import invalid

ADMIN_KEY_NEEDED: Final = "The admin API needs the admin key. Send it as 'Authorization: Bearer <admin key>'."


def admin_guard(admin_key: AdminKey) -> Guard:
    """A guard that lets in whoever presents the admin key, as a bearer token or as `x-api-key`."""

    def guard(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        presented = presented_key(connection)
        if presented is None or not admin_key.matches(presented):
            raise errors.unauthorized(ADMIN_KEY_NEEDED)

    return guard


def presented_key(connection: ASGIConnection[Any, Any, Any, Any]) -> bytes | None:
    authorization = connection.headers.get("authorization")
    if authorization is not None:
        return bearer_token(authorization.encode("latin-1"))
    api_key = connection.headers.get("x-api-key")
    return api_key.encode("latin-1") if api_key else None


async def refuse_unknown_query(request: Request[Any, Any, Any]) -> None:
    """A misspelt filter would answer for everything instead of nothing: 422 names it, and one given twice.

    So does a NUL, which PostgreSQL cannot even compare with.
    """
    known = _query_names(request)
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise invalid(f"{name}: unknown query parameter; known: {', '.join(known) or 'none'}", name)
        if len(request.query_params.getall(name)) > 1:
            raise invalid(f"{name}: is given more than once", name)
        if "\x00" in value:
            raise invalid(f"{name}: has a NUL character", name)
    for name, part in request.path_params.items():
        if "\x00" in str(part):
            raise invalid(f"{name}: has a NUL character", name)


def _query_names(request: Request[Any, Any, Any]) -> list[str]:
    """The handler's parameters that neither the path, the body nor a dependency fills."""
    handler = request.route_handler
    filled = {"self", "data", "request", *request.path_params, *handler.resolve_dependencies()}
    return sorted(name for name in handler.parsed_fn_signature.parameters if name not in filled)
