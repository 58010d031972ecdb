"""Signing in and out, and how pages are shown: language, theme, time zone."""

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from litestar import Controller, Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import SkipValidation
from litestar.response import Redirect

from gateway import errors
from gateway.access.admin_key import AdminKey
from gateway.admin import audit
from gateway.admin.guard import address_of, identify
from gateway.admin.roles import Principal
from gateway.dashboard import oidc
from gateway.dashboard.app import Seen, read_form
from gateway.dashboard.language import LANGUAGES
from gateway.dashboard.security import HOME, check_origin, way_back
from gateway.dashboard.sessions import COOKIE, LIFE_US, close_session, open_session
from gateway.dashboard.visit import LANGUAGE, THEME, THEMES, ZONE, read_look
from gateway.services import Services

YEAR_S = 366 * 86_400


class SignInController(Controller):
    path = "/"

    @get("/sign-in", include_in_schema=False)
    async def form(
        self, request: Request[Any, Any, Any], services: NamedDependency[SkipValidation[Services]]
    ) -> Response[str]:
        back = way_back(request.query_params.get("back"))
        return read_look(request).page("sign_in", back=back, problem=None, oidc=services.settings.oidc)

    @post("/sign-in", include_in_schema=False)
    async def sign_in(
        self,
        request: Request[Any, Any, Any],
        services: NamedDependency[SkipValidation[Services]],
        admin_key: NamedDependency[SkipValidation[AdminKey]],
    ) -> Response[Any]:
        """A new session under a new cookie, whatever cookie the browser brought; the old session ends."""
        check_origin(request)
        form = await read_form(request)
        back = way_back(form.get("back"))
        credential = form.get("key", "").encode()
        try:
            principal = await identify(services, admin_key, credential)
        except errors.ApiError as error:
            if error.status != 401:
                raise
            look = read_look(request)
            problem = look.speech.say("That is neither the admin key nor a token that works.")
            return look.page("sign_in", 401, back=back, problem=problem, oidc=services.settings.oidc)
        cookie = await _enter(request, services, principal, credential)
        return Redirect(back, status_code=303, cookies=[_session(request, cookie, LIFE_US // 1_000_000)])

    @get("/oidc/start", include_in_schema=False)
    async def oidc_start(
        self, request: Request[Any, Any, Any], services: NamedDependency[SkipValidation[Services]]
    ) -> Redirect:
        """To the provider, with a cookie that knows the way back. Lax: it comes along when the provider sends the browser."""
        settings = services.settings.oidc
        if settings.issuer is None:
            raise NotFoundException
        back = way_back(request.query_params.get("back"))
        address, cookie = await oidc.begin(settings, services.authenticator.pepper, back)
        return Redirect(address, status_code=303, cookies=[_started(request, cookie, oidc.LIFE_S)])

    @get("/oidc", include_in_schema=False)
    async def oidc_back(
        self, request: Request[Any, Any, Any], services: NamedDependency[SkipValidation[Services]]
    ) -> Response[str]:
        """A page that goes on by itself, not a redirect: a strict cookie is not sent along a way that began at another site."""
        settings = services.settings.oidc
        if settings.issuer is None:
            raise NotFoundException
        query = {name: value for name, value in request.query_params.items() if len(value) <= 4000}
        pepper = services.authenticator.pepper
        principal, back = await oidc.finish(settings, pepper, request.cookies.get(oidc.COOKIE), query)
        credential = oidc.credential_of(settings)
        assert credential is not None
        cookie = await _enter(request, services, principal, credential)
        page = read_look(request).page("signed_in", back=way_back(back))
        page.cookies = [_session(request, cookie, LIFE_US // 1_000_000), _started(request, "", 0)]
        return page

    @post("/sign-out", include_in_schema=False)
    async def sign_out(
        self, request: Request[Any, Any, Any], visit: Seen, services: NamedDependency[SkipValidation[Services]]
    ) -> Redirect:
        async with services.database.begin() as connection:
            await close_session(connection, services.authenticator.pepper, request.cookies[COOKIE])
        return Redirect(f"{HOME}/sign-in", status_code=303, cookies=[_session(request, "", 0)])

    @get("/show", include_in_schema=False)
    async def show(self, request: Request[Any, Any, Any]) -> Redirect:
        """Remembers how pages are shown, in cookies that hold nothing else."""
        query = request.query_params
        cookies = []
        for name, value, allowed in (
            (LANGUAGE, query.get("language"), LANGUAGES),
            (THEME, query.get("theme"), THEMES),
            (ZONE, query.get("tz"), available_timezones()),
        ):
            if value in allowed:
                cookies.append(
                    Cookie(
                        name,
                        value=str(value),
                        path=HOME,
                        max_age=YEAR_S,
                        samesite="lax",
                        secure=_secure(request),
                        httponly=True,
                    )
                )
        return Redirect(way_back(query.get("back")), status_code=303, cookies=cookies)


async def _enter(request: Request[Any, Any, Any], services: Services, principal: Principal, credential: bytes) -> str:
    """A new session, in the audit log with its beginning; returns its cookie."""
    pepper = services.authenticator.pepper
    former = request.cookies.get(COOKIE)
    async with services.database.begin() as connection:
        if former:
            await close_session(connection, pepper, former)
        cookie = await open_session(connection, pepper, principal, credential)
        await audit.append(
            connection,
            actor=principal.name,
            role=principal.role,
            address=address_of(request, services),
            action="sign in",
            target="/dashboard",
            before=None,
            after=None,
        )
    return cookie


def _started(request: Request[Any, Any, Any], value: str, max_age_s: int) -> Cookie:
    return Cookie(
        oidc.COOKIE,
        value=value,
        path=f"{HOME}/oidc",
        max_age=max_age_s,
        httponly=True,
        samesite="lax",
        secure=_secure(request),
    )


def _session(request: Request[Any, Any, Any], value: str, max_age_s: int) -> Cookie:
    return Cookie(
        COOKIE, value=value, path=HOME, max_age=max_age_s, httponly=True, samesite="strict", secure=_secure(request)
    )


def _secure(request: Request[Any, Any, Any]) -> bool:
    """Whether the browser speaks TLS, as far as can be told: a plain address keeps working on the machine itself."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
