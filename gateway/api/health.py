"""Liveness, readiness and metrics. Liveness depends on nothing: a provider or a database that is away never restarts a pod."""

from __future__ import annotations

import hmac

import msgspec

from gateway import errors
from gateway.access.authenticator import bearer_token
from gateway.api.asgi import JSON, Receive, Scope, Send, send_bytes, send_error
from gateway.ids import new_request_id
from gateway.metrics import CONTENT_TYPE
from gateway.services import Services


class Health:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def live(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, b'{"status":"ok"}', [JSON])

    async def ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        reasons = self._services.not_ready()
        if not reasons:
            await send_bytes(send, 200, b'{"status":"ready"}', [JSON])
            return
        await send_bytes(send, 503, msgspec.json.encode({"status": "not ready", "reasons": reasons}), [JSON])

    async def metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = self._services.settings.metrics_token
        if token is not None:
            given = bearer_token(dict(scope["headers"]).get(b"authorization", b"")) or b""
            if not hmac.compare_digest(given, token.reveal().encode()):
                error = errors.unauthorized("The metrics need their token, as 'Authorization: Bearer <metrics_token>'.")
                await send_error(send, error, str(new_request_id()).encode())
                return
        text = await self._services.exposition()
        await send_bytes(send, 200, text, [(b"content-type", CONTENT_TYPE.encode())])
