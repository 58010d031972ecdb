"""Puts the dashboard together: its pages, its files, and the one door that every page is behind."""

from __future__ import annotations

import hashlib
import logging
import re
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import litestar
from litestar import Request, Response, get
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, SkipValidation
from litestar.response import Redirect

from billing.database import reading
from gateway.access.admin_key import AdminKey
from gateway.admin.failures import to_api_error
from gateway.dashboard.inside import App, Refused
from gateway.dashboard.oidc import credential_of
from gateway.dashboard.security import HEADERS, HOME, check_csrf, check_origin, way_back
from gateway.dashboard.sessions import COOKIE, find_session
from gateway.dashboard.visit import FOLDER, Visit, read_look, read_visit
from gateway.litestar_app import LitestarApp
from gateway.services import Services

logger = logging.getLogger(__name__)

MAX_FORM_BYTES: Final = 256 * 1024
FILES: Final = {
    "style.css": ("static", "text/css"),
    "dashboard.js": ("static", "text/javascript"),
    "htmx.min.js": ("vendor", "text/javascript"),
    "uPlot.iife.min.js": ("vendor", "text/javascript"),
    "uPlot.min.css": ("vendor", "text/css"),
    "schema.js": ("static", "text/javascript"),
    "swagger-ui-bundle.js": ("vendor", "text/javascript"),
    "swagger-ui.css": ("vendor", "text/css"),
}

Seen = NamedDependency[SkipValidation[Visit]]


_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")


class SignInFirst(Exception):
    """Nobody is signed in."""


@cache
def file_bytes(name: str) -> tuple[bytes, str, str]:
    """Content, type and ETag of one of `FILES`."""
    folder, kind = FILES[name]
    content = (FOLDER / folder / name).read_bytes()
    return content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


@get("/files/{name:str}", include_in_schema=False)
async def file(name: FromPath[str], request: Request[Any, Any, Any]) -> Response[bytes]:
    """Style and scripts: the same for everybody, so they need no session."""
    if name not in FILES:
        raise NotFoundException
    content, kind, etag = file_bytes(name)
    headers = {**HEADERS, "cache-control": "no-cache", "etag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(b"", status_code=304, headers=headers)
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=headers)


def create_dashboard(services: Services, admin_key: AdminKey, admin: App, pages: list[Any]) -> litestar.Litestar:
    """The application under /dashboard. `admin` is the admin API's application, which every page asks."""

    def credentials() -> list[bytes]:
        through_provider = credential_of(services.settings.oidc)
        return [admin_key.secret.reveal().encode(), *([] if through_provider is None else [through_provider])]

    async def visit(request: Request[Any, Any, Any]) -> Visit:
        cookie = request.cookies.get(COOKIE)
        if not cookie:
            raise SignInFirst
        pepper = services.authenticator.pepper
        async with reading(services.database) as connection:
            session = await find_session(connection, pepper, cookie, credentials())
        if session is None:
            raise SignInFirst
        form: dict[str, str] = {}
        if request.method != "GET":
            check_origin(request)
            form = await read_form(request)
            check_csrf(session.csrf, request.headers.get("x-csrf-token") or form.get("csrf"))
        return read_visit(request, services, session, admin, form)

    return LitestarApp(
        route_handlers=[litestar.Router(HOME, route_handlers=[file, *pages])],
        dependencies={
            "visit": Provide(visit),
            "services": Provide(lambda: services, sync_to_thread=False),
            "admin_key": Provide(lambda: admin_key, sync_to_thread=False),
        },
        exception_handlers={Exception: _failed, HTTPException: _failed},
        request_max_body_size=MAX_FORM_BYTES,
        openapi_config=None,
        logging_config=None,
    )


async def read_form(request: Request[Any, Any, Any]) -> dict[str, str]:
    """The fields of a form as texts, without what was left empty."""
    body = await request.body()
    pairs = parse_qsl(body.decode("utf-8", "replace"), max_num_fields=200)
    return {name: value.strip() for name, value in pairs if value.strip()}


def whole(text: str) -> int | str:
    """A number, or the text as it came: the API says what is wrong with it."""
    return int(text) if _WHOLE.fullmatch(text) else text


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    look = read_look(request)
    if isinstance(error, SignInFirst):
        return _sign_in(request)
    if isinstance(error, Refused):
        return look.page("failed", error.status, status_code=error.status, message=error.message)
    if isinstance(error, NotFoundException):
        return look.page("failed", 404, status_code=404, message=look.speech.say("There is no such page."))
    if isinstance(error, HTTPException):
        return look.page("failed", error.status_code, status_code=error.status_code, message=error.detail)
    answer = to_api_error(error)
    return look.page("failed", answer.status, status_code=answer.status, message=answer.message)


def _sign_in(request: Request[Any, Any, Any]) -> Response[Any]:
    """To the sign-in page and back here; a part of a page that is asked for by script takes the whole page there."""
    look = read_look(request)
    back = way_back(look.here if request.method == "GET" else None)
    target = f"{HOME}/sign-in?back={quote(back, safe='')}"
    if request.headers.get("hx-request") or request.method != "GET":
        return Response("", status_code=401, headers={**HEADERS, "hx-redirect": target})
    return Redirect(target, status_code=303)
