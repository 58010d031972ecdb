"""One try to deliver one event: to a checked address, signed, without following where it is sent on."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import httpx

from gateway.secret import Secret
from gateway.webhooks.addresses import ForbiddenAddress, Network, pinned
from gateway.webhooks.outbox import Pending
from gateway.webhooks.signing import EVENT_ID, HEADER, sign

if TYPE_CHECKING:
    from gateway.settings import WebhookSettings


class Undelivered(Exception):
    """The receiver did not take it; the message says why, without the receiver's words."""


class Sender:
    """Posts to one configured `url`. Any answer of 2xx is a receipt."""

    def __init__(
        self,
        url: str,
        secret: Secret,
        networks: Sequence[Network] = (),
        timeout_s: float = 10.0,
        *,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """`trust`: whose certificates are believed (None: the public authorities')."""
        self._url = httpx.URL(url)
        self._secret = secret
        self._networks = networks
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            trust_env=False, follow_redirects=False, timeout=timeout_s, verify=True if trust is None else trust
        )

    async def send(self, event: Pending) -> None:
        """Raises `Undelivered`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._post(event.key, event.body.encode())
        except ForbiddenAddress as error:
            raise Undelivered(str(error)) from error
        except TimeoutError as error:
            raise Undelivered(f"no answer within {self._timeout_s:g} s") from error
        except (httpx.HTTPError, OSError) as error:
            raise Undelivered(f"{type(error).__name__}: {error}") from error
        if not 200 <= status < 300:
            raise Undelivered(f"answered with status {status}")

    async def _post(self, key: str, body: bytes) -> int:
        headers = {
            "content-type": "application/json",
            EVENT_ID: key,
            HEADER: sign(self._secret.reveal(), body, int(time.time())),
        }
        request = await pinned(self._client, "POST", self._url, self._networks, headers=headers, content=body)
        response = await self._client.send(request, stream=True)
        await response.aclose()  # what it says is of no use
        return response.status_code

    async def aclose(self) -> None:
        await self._client.aclose()


def build_sender(settings: WebhookSettings) -> Sender | None:
    """None where no webhook is configured."""
    if settings.url is None:
        return None
    assert settings.secret
    return Sender(settings.url, settings.secret, settings.allowed(), settings.timeout_s)
