"""One file of market rates over HTTP: from a configured address, checked and pinned, bounded, never redirected."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from gateway.settings import RateFeedSettings
from gateway.webhooks.addresses import ForbiddenAddress, pinned

MOST_BYTES: Final = 8 << 20
PLAIN: Final = {"accept-encoding": "identity"}
"""A file of rates is small; what is packed could be anything."""


class FetchError(Exception):
    """The file could not be had; the message says why."""


async def fetch(feed: RateFeedSettings) -> str:
    """The file's text. Raises `FetchError`."""
    try:
        async with asyncio.timeout(feed.timeout_s):
            return (await _body(feed)).decode()
    except ForbiddenAddress as error:
        raise FetchError(str(error)) from error
    except TimeoutError as error:
        raise FetchError(f"no whole answer within {feed.timeout_s:g} s") from error
    except UnicodeDecodeError as error:
        raise FetchError("the answer is no UTF-8") from error
    except (httpx.HTTPError, OSError) as error:
        raise FetchError(f"{type(error).__name__}: {error}") from error


async def _body(feed: RateFeedSettings) -> bytes:
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=feed.timeout_s) as client:
        request = await pinned(client, "GET", httpx.URL(feed.address), feed.allowed(), headers=PLAIN)
        response = await client.send(request, stream=True)
        try:
            if response.status_code != 200:
                advice = "; redirects are not followed" if response.is_redirect else ""
                raise FetchError(f"answered with status {response.status_code}{advice}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise FetchError("answered with an encoding that was not asked for")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > MOST_BYTES:
                    raise FetchError(f"the answer is larger than {MOST_BYTES} bytes")
            return bytes(body)
        finally:
            await response.aclose()
