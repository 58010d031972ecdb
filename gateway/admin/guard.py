"""What stands before every admin route: who asks, whether their role may, whether it is their team's, and that nothing in the
query is misspelt.

All of it hangs on the router, not on the routes, so that a new route is closed until somebody opens it in `roles.RULES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import SerializationException
from litestar.handlers.base import BaseRouteHandler
from litestar.types import Guard
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.budgets import get_budget
from billing.database import reading
from billing.errors import InvalidQuery
from billing.money import INT64_MAX
from billing.reads import parse_request_id, usage_row
from billing.times import now_us
from gateway import errors
from gateway.access.admin_key import AdminKey
from gateway.access.authenticator import bearer_token
from gateway.access.client_address import client_address
from gateway.access.repository import get_key
from gateway.admin.failures import invalid, missing
from gateway.admin.idempotency import HEADER, check_key
from gateway.admin.roles import ADMIN, OWNER_ALONE, ROOT, RULES, Principal, Rule
from gateway.admin.services import Acting, AdminServices
from gateway.admin.tokens import find_token, looks_like_token

Connection = ASGIConnection[Any, Any, Any, Any]

PRINCIPAL: Final = "metergate.principal"
"""Where the scope says who acts. Nothing outside this process can set it: the dashboard does, for its sessions."""
KEY_NEEDED: Final = "The admin API needs the admin key or a role's token. Send it as 'Authorization: Bearer <key>'."


def admin_guard(services: AdminServices, admin_key: AdminKey) -> Guard:
    """A guard that lets in whoever presents the admin key or a token whose role may, as a bearer token or as `x-api-key`."""

    async def guard(connection: Connection, _: BaseRouteHandler) -> None:
        scope = _scope(connection)
        principal: Principal | None = scope.get(PRINCIPAL)
        if principal is None:
            principal = scope[PRINCIPAL] = await identify(services, admin_key, presented_key(connection))
        rule = RULES.get(route_of(connection), OWNER_ALONE)
        if not rule.allows(principal.role):
            raise errors.forbidden(f"The role {principal.role} may not do this.", code="role_not_allowed")
        if principal.team_id is not None:
            await _hold_to_team(connection, services, rule, principal.team_id)

    return guard


def _scope(connection: Connection) -> dict[str, Any]:
    """ASGI's scope, which holds more than its types say."""
    return cast(dict[str, Any], connection.scope)


async def identify(services: AdminServices, admin_key: AdminKey, presented: bytes | None) -> Principal:
    """Who presents this. Raises `ApiError` 401 for nobody, an unknown, revoked or expired one."""
    if presented is not None and admin_key.matches(presented):
        return ROOT
    if presented is not None and looks_like_token(presented):
        async with reading(services.database) as connection:
            token = await find_token(connection, presented, services.authenticator.pepper)
        if token is not None and token.works_at(now_us()):
            return token.principal()
    raise errors.unauthorized(KEY_NEEDED)


def route_of(connection: Connection) -> str:
    """`GET /admin/v1/teams/{team_id}`: how `roles.RULES` and the audit log name what is asked."""
    return f"{connection.scope.get('method')} {connection.scope.get('path_template')}"


async def _hold_to_team(connection: Connection, services: AdminServices, rule: Rule, team_id: str) -> None:
    """Raises `ApiError` where a team admin asks for anything but their own team's; of others they learn nothing, not even that
    they exist."""
    match rule.team:
        case "path":
            if connection.path_params.get("team_id") != team_id:
                raise missing("team", str(connection.path_params.get("team_id"))[:100])
        case "query" | "projects":
            name = "team_id" if rule.team == "query" else "project_ids"
            if connection.query_params.getall(name, []) != [team_id]:
                message = f"{name}: this token is one team's; ask with {name}={team_id}"
                raise errors.forbidden(message, code="team_not_allowed", param=name)
        case "body":
            asked = await _team_in_body(connection)
            if asked is not None and asked != team_id:
                message = f"team_id: this token is one team's; the only one it can name is {team_id}"
                raise errors.forbidden(message, code="team_not_allowed", param="team_id")
        case "key" | "request" | "budget":
            named = str(connection.path_params.get(f"{rule.team}_id"))
            async with reading(services.database) as books:
                owner = await _OWNER[rule.team](books, named)
            if owner != team_id:
                raise missing(rule.team, named[:100])
        case _:
            assert rule.team == "none"


async def _team_in_body(connection: Connection) -> object:
    """None when the body has none or cannot be read: the handler then refuses it in its own words."""
    assert isinstance(connection, Request)
    try:
        body: object = await connection.json()
    except (SerializationException, RecursionError):
        return None
    return body.get("team_id") if isinstance(body, dict) else None


async def _keys_team(books: AsyncConnection, key_id: str) -> str | None:
    row = None if "\x00" in key_id else await get_key(books, key_id)
    return None if row is None else row.team_id


async def _requests_team(books: AsyncConnection, request_id: str) -> str | None:
    try:
        row = await usage_row(books, parse_request_id(request_id, "id"))
    except InvalidQuery:
        return None
    return None if row is None else row.team_id


async def _budgets_team(books: AsyncConnection, budget_id: str) -> str | None:
    """The team that a budget is over, itself or one of its keys; nobody's where it is over everything."""
    number = int(budget_id)
    row = await get_budget(books, number) if 0 <= number <= INT64_MAX else None
    if row is None or row.scope_id is None or row.scope == "team":
        return None if row is None else row.scope_id
    return await _keys_team(books, row.scope_id)


_OWNER: Final[dict[str, Callable[[AsyncConnection, str], Awaitable[str | None]]]] = {
    "key": _keys_team,
    "request": _requests_team,
    "budget": _budgets_team,
}


async def acting_of(request: Request[Any, Any, Any], services: AdminServices) -> Acting:
    """The request as the audit log and the idempotency keys see it. Raises `ApiError` 422 for a header that cannot be one."""
    method, path = str(request.method), request.url.path
    writes = method != "GET"
    key = request.headers.get(HEADER) if writes else None
    hashed = hashlib.sha256(f"{method} {path}\n".encode())
    if key is not None:
        check_key(key)
        hashed.update(await request.body())
    return Acting(
        principal=_scope(request)[PRINCIPAL],
        address=address_of(request, services),
        action=f"{method} {str(request.scope['path_template']).removeprefix(ADMIN)}",
        target=path.removeprefix(ADMIN),
        idempotency_key=key,
        request=hashed.hexdigest(),
        if_match=request.headers.get("if-match") if writes else None,
    )


def address_of(connection: Connection, services: AdminServices) -> str | None:
    client = connection.client
    forwarded = [value for name, value in connection.scope["headers"] if name == b"x-forwarded-for"]
    address = client_address(client.host if client else None, forwarded, services.settings.proxy_networks())
    return None if address is None else str(address)


def presented_key(connection: Connection) -> bytes | None:
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
