"""One upstream at run time: where it is, what it is told of us, and how many calls are out there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.settings import ProviderSettings
from gateway.upstream.anthropic import AnthropicAdapter
from gateway.upstream.azure import AzureAdapter
from gateway.upstream.base import Adapter
from gateway.upstream.engine import EngineAdapter
from gateway.upstream.gemini import GeminiAdapter
from gateway.upstream.openai import OpenAIAdapter
from gateway.upstream.wire import Transport, transport_for

_VERSION: Final = re.compile(r"/v[0-9]+[a-z0-9]*$")

ADAPTERS: Final[Mapping[str, Adapter]] = {
    each.kind: each for each in (OpenAIAdapter(), EngineAdapter(), AnthropicAdapter(), GeminiAdapter())
}


_AZURE: Final = AzureAdapter()


class Credential:
    """One of our keys, as the headers that present it, and until when it is left alone."""

    __slots__ = ("headers", "held_until_s", "secret")

    def __init__(self, headers: dict[str, str], secret: str | None) -> None:
        self.headers = headers
        self.secret = secret
        self.held_until_s = 0.0


class Provider:
    """A bundled engine has no address until it is up: `connect` gives it one, `disconnect` takes it away."""

    def __init__(self, name: str, settings: ProviderSettings) -> None:
        self.name = name
        self.settings = settings
        self.adapter: Adapter = ADAPTERS[settings.kind] if settings.api_version is None else _AZURE
        self.price_list = settings.price_as or name
        self.cost_per_hour = settings.hourly_cost()
        given = settings.api_keys or ([] if settings.api_key is None else [settings.api_key])
        self._credentials = [self._present(secret.reveal()) for secret in given] or [self._present(None)]
        self.credential = self._credentials[0]
        """The one in use: what goes out now is sent with it."""
        self.limited = settings.requests_per_minute is not None or settings.tokens_per_minute is not None
        self.in_flight = 0
        self.base_url: str | None = None
        self._root = ""
        self._urls: dict[str, str] = {}
        self._transport: Transport | None = None
        if settings.base_url is not None:
            self.connect(settings.base_url)

    def _present(self, secret: str | None) -> Credential:
        headers = {"content-type": "application/json", **self.adapter.fixed_headers}
        return Credential(headers | self.adapter.credentials(secret) if secret is not None else headers, secret)

    @property
    def headers(self) -> dict[str, str]:
        return self.credential.headers

    @property
    def secrets(self) -> list[str]:
        """Every key of ours there: what no word of the provider may repeat."""
        return [each.secret for each in self._credentials if each.secret is not None]

    def turn(self, used: Credential, now_s: float, wait_s: float) -> bool:
        """`used` is to be left alone for `wait_s`; whether another key is in use from now on."""
        used.held_until_s = max(used.held_until_s, now_s + wait_s)
        place = self._credentials.index(used) if used in self._credentials else 0
        for step in range(len(self._credentials)):
            following = self._credentials[(place + step) % len(self._credentials)]
            if following.held_until_s <= now_s:
                self.credential = following
                return True
        return False

    def keys_held(self, now_s: float) -> int:
        return sum(each.held_until_s > now_s for each in self._credentials)

    def connect(self, base_url: str, secret: str | None = None) -> None:
        """`base_url` up to and with the API's version, which may be left out where the adapter knows it.

        `secret` is what an engine of our own asks for.
        """
        if secret is not None:
            self.credential = self._present(secret)
            self._credentials = [self.credential]
        root = base_url.rstrip("/")
        if self.adapter.root_suffix and not _VERSION.search(root):
            root += self.adapter.root_suffix
        self.base_url, self._root, self._urls = base_url, root, {}
        if self._transport is None:
            self._transport = transport_for(root, connect_timeout_s=self.settings.connect_timeout_s)

    def disconnect(self) -> None:
        self.base_url = None

    @property
    def transport(self) -> Transport:
        assert self._transport is not None, f"provider {self.name} has no address yet"
        return self._transport

    def url(self, path: str) -> str:
        """`path` is below the base URL: "/chat/completions"."""
        url = self._urls.get(path)
        if url is None:
            url = self._root + path
            if path.count("/") < 3:
                self._urls[path] = url
        return url

    @property
    def available(self) -> bool:
        most = self.settings.max_parallel
        return self.base_url is not None and (most is None or self.in_flight < most)

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
