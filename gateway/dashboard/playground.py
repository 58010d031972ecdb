"""A conversation with any model, billed to a chosen key through the same door as every caller's request."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.types import ASGIApp

from billing.times import now_us
from gateway import errors
from gateway.access.authenticator import IDENTITY
from gateway.access.identity import Identity
from gateway.api.asgi import Receive, Scope, Send
from gateway.api.chat import ChatCompletions
from gateway.api.exchange import Exchange
from gateway.api.lookups import pricing
from gateway.dashboard.app import Seen
from gateway.dashboard.visit import Visit

SPEND: Final = "POST /admin/v1/keys"
"""Whoever may make a key for a team may spend on one of its keys."""
_UNTAGGABLE: Final = re.compile(r"[^A-Za-z0-9@._:-]")
"""What a tag's value is spared of: the usage row says by a tag who asked."""


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_id: str
    model: str
    messages: list[dict[str, str]]
    temperature: float | None = None
    max_tokens: int | None = None


class PlaygroundController(Controller):
    path = "/playground"

    @get("/", include_in_schema=False)
    async def show(self, visit: Seen) -> Response[str]:
        visit.require(SPEND)
        keys = sorted(_usable(visit).values(), key=lambda key: (key.team_id, key.key_name))
        snapshot, at_us = visit.services.catalog.snapshot, now_us()
        prices: dict[str, dict[str, dict[str, str] | None]] = {}
        for team_id in {key.team_id for key in keys}:
            prices[team_id] = {
                model.name: pricing(snapshot, team_id, model.routes[0], at_us)
                for model in visit.services.router.models()
            }
        names = {team.id: team.name for team in snapshot.teams.values()}
        models = sorted(model.name for model in visit.services.router.models())
        return visit.page("playground", keys=keys, models=models, names=names, prices=prices)

    @post("/stream", include_in_schema=False)
    async def stream(self, request: Request[Any, Any, Any], visit: Seen) -> ASGIApp:
        """The answer's events as a caller of that key would get them. Limits, budgets and prices are the key's."""
        visit.require(SPEND)
        try:
            ask = msgspec.json.decode(await request.body(), type=Ask)
        except msgspec.DecodeError as error:
            raise errors.bad_request(str(error)) from error
        identity = _usable(visit).get(ask.key_id)
        if identity is None:
            raise errors.forbidden("This key cannot be used here.", code="key_not_usable", param="key_id")
        client_ip = visit.api.client and visit.api.client[0]
        visit.services.authenticator.check(identity, client_ip, visit.api.forwarded)
        body: dict[str, Any] = {"model": ask.model, "messages": ask.messages, "stream": True}
        body["stream_options"] = {"include_usage": True}
        for name in ("temperature", "max_tokens"):
            if getattr(ask, name) is not None:
                body[name] = getattr(ask, name)
        return _Exchanged(visit, identity, msgspec.json.encode(body))


class _Exchanged:
    """The request as the gateway runs every other one, in the name of a key whose secret nobody here knows."""

    def __init__(self, visit: Visit, identity: Identity, body: bytes) -> None:
        self._visit = visit
        self._identity = identity
        self._body = body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        asker = _UNTAGGABLE.sub("_", self._visit.principal.name)[:100]
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self._body)).encode()),
            (b"x-metergate-tags", f"playground={asker}".encode()),
        ]
        inner: Scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": headers,
            "client": scope.get("client"),
            IDENTITY: self._identity,
        }
        given = False

        async def body_then_caller() -> Any:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": self._body, "more_body": False}
            return await receive()

        inside: Receive = body_then_caller
        out: Send = send
        await Exchange(self._visit.services, ChatCompletions(), inner, inside, out).run()


def _usable(visit: Visit) -> dict[str, Identity]:
    """Keys that still work, of the person's team or of all, by id."""
    at_us, own = now_us(), visit.principal.team_id
    return {
        key.key_id: key
        for key in visit.services.catalog.snapshot.keys.values()
        if not key.revoked and (key.expires_at_us is None or key.expires_at_us > at_us) and own in (None, key.team_id)
    }
