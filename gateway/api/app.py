"""The ASGI application: caller endpoints as raw routes, everything for operators in Litestar behind them.

The caller's routes stand before Litestar's router, not inside it: its dispatch, with the scope state and the middleware stack
that it sets up, costs a forwarded request more than our own key check, limits and journal together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal, cast

from gateway import errors
from gateway.access.admin_key import load_admin_key
from gateway.admin.description import CONFIG
from gateway.admin.failures import HANDLERS
from gateway.admin.routes import admin_routers
from gateway.api.asgi import Receive, Scope, Send, send_error
from gateway.api.chat import ChatCompletions
from gateway.api.completions import Completions
from gateway.api.embeddings import Embeddings
from gateway.api.exchange import Exchange
from gateway.api.health import Health
from gateway.api.lookups import KeyLookup, ModelLookup
from gateway.api.media import MEDIA
from gateway.api.messages import CountTokens, Messages
from gateway.api.responses import Responses
from gateway.api.surface import Surface
from gateway.dashboard.app import create_dashboard
from gateway.dashboard.pages import PAGES
from gateway.dashboard.schema import SCHEMA, create_schema_pages
from gateway.dashboard.security import HOME as DASHBOARD
from gateway.ids import new_request_id
from gateway.litestar_app import LitestarApp
from gateway.services import Services

Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]
Part = Literal["all", "callers", "operators"]

SURFACES: Final[dict[str, Surface]] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/completions": Completions(),
    "/v1/embeddings": Embeddings(),
    "/v1/messages": Messages(),
    "/v1/messages/count_tokens": CountTokens(),
    "/v1/responses": Responses(),
    **{f"/v1{each.path}": each for each in MEDIA},
}
"""Every route that can cost money, with its surface. All of them run as an `Exchange`: there is no other way in."""

ALIASES: Final[dict[str, Surface]] = {path.removeprefix("/v1"): surface for path, surface in SURFACES.items()}
"""The same without the version, as clients call it that were told a base URL without one."""

OPERATORS: Final = ("/admin", "/dashboard", "/schema", "/v1/organization/")


class Gateway:
    """Dispatches by path. `part` says which routes this listener serves; health is served by all."""

    def __init__(self, services: Services, part: Part = "all") -> None:
        self._services = services
        self._operators = None if part == "callers" else _operators(services)
        self._callers = part != "operators"
        health = Health(services)
        self._posts: dict[str, Surface] = {**SURFACES, **ALIASES} if self._callers else {}
        self._gets: dict[str, Endpoint] = {
            "/health": health.live,
            "/health/live": health.live,
            "/health/ready": health.ready,
        }
        if part != "callers":
            self._gets["/metrics"] = health.metrics
            self._gets["/"] = _to_dashboard
        self._models = ModelLookup(services)
        if self._callers:
            self._gets["/v1/models"] = self._gets["/models"] = self._models.every
            self._gets["/v1/key"] = KeyLookup(services).show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        path: str = scope["path"]
        surface = self._posts.get(path)
        if surface is not None and scope["method"] == "POST":
            await Exchange(self._services, surface, scope, receive, send).run()
            return
        await self._look_up(path, scope, receive, send)

    async def _look_up(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        method: str = scope["method"]
        endpoint = self._gets.get(path)
        if endpoint is None and self._callers and path.startswith(("/v1/models/", "/models/")):
            endpoint = self._models.one
        if endpoint is not None and method in ("GET", "HEAD"):
            await endpoint(scope, receive, send)
        elif endpoint is not None:
            await self._refuse(send, errors.method_not_allowed(method, path, "GET"))
        elif path in self._posts:
            await self._refuse(send, errors.method_not_allowed(method, path, "POST"))
        elif self._operators is not None and path.startswith(OPERATORS):
            await self._operators(scope, receive, send)
        else:
            await self._refuse(send, errors.not_found(path))

    async def _refuse(self, send: Send, error: errors.ApiError) -> None:
        self._services.metrics.refused.labels(str(error.status)).inc()
        await send_error(send, error, str(new_request_id()).encode())

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lifespan, for servers that use it; web sockets are not spoken here."""
        if scope["type"] != "lifespan":
            await send({"type": "websocket.close", "code": 1008})
            return
        await receive()
        try:
            await self._services.start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._services.stop()
        await send({"type": "lifespan.shutdown.complete"})


def create_app(services: Services, part: Part = "all") -> Gateway:
    """The application for one listener. `services` must be started, here by the lifespan or by the caller."""
    return Gateway(services, part)


async def _to_dashboard(scope: Scope, receive: Receive, send: Send) -> None:
    """Whoever opens the address in a browser wants to see something."""
    headers = [(b"location", DASHBOARD.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _operators(services: Services) -> Endpoint:
    """The admin API, its description, and the dashboard, which asks it."""
    admin = LitestarApp(
        route_handlers=admin_routers(services),
        openapi_config=CONFIG,
        exception_handlers=HANDLERS,
        logging_config=None,
    )
    asked = cast(Endpoint, admin)
    dashboard = cast(Endpoint, create_dashboard(services, load_admin_key(services.settings), asked, PAGES))
    schema = cast(Endpoint, create_schema_pages(admin))

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path == DASHBOARD or path.startswith(f"{DASHBOARD}/"):
            await dashboard(scope, receive, send)
        elif path == SCHEMA or path.startswith(f"{SCHEMA}/"):
            await schema(scope, receive, send)
        else:
            await asked(scope, receive, send)

    return dispatch
