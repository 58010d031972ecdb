"""From a request's headers to the `Identity` behind its key, or the error that says why there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final

from billing.times import now_us
from gateway import errors
from gateway.access.client_address import client_address, is_inside
from gateway.access.identity import Identity, Network
from gateway.access.keys import digest, looks_like_key
from gateway.access.pepper import Pepper
from gateway.catalog import Catalog, Snapshot

Headers = Iterable[tuple[bytes, bytes]]

IDENTITY: Final = "metergate.identity"
"""Where a scope made inside this process names its caller: the dashboard's playground speaks for a key that it was allowed to."""
_RETRY_AFTER_S = 2
MARK_BYTES: Final = 32


class Authenticator:
    """Finds a key by its whole keyed hash in the catalog's memory; no request waits for the database.

    The table is keyed by HMAC-SHA256 under a secret pepper: what a caller sends decides nothing about where in the table
    the comparison ends, so its timing says nothing about stored keys.
    """

    def __init__(
        self,
        catalog: Catalog,
        pepper: Pepper,
        *,
        trusted_proxies: Sequence[Network] = (),
        auth_stale_s: int = 900,
        clock_us: Callable[[], int] = now_us,
    ) -> None:
        self.pepper = pepper
        self._catalog = catalog
        self._trusted = tuple(trusted_proxies)
        self._auth_stale_s = auth_stale_s
        self._clock_us = clock_us
        self._salt = os.urandom(MARK_BYTES)
        self._known: dict[bytes, Identity] = {}
        self._known_in: Snapshot | None = None

    def identify(self, headers: Headers, client_ip: str | None) -> Identity:
        """The caller's identity. `headers` are raw ASGI headers (lower-case names), `client_ip` the peer's address.

        Raises `ApiError`: 401 for no key, an unknown, revoked or expired one; 403 for a key that may not be used from
        this address; 503 when the catalog was never loaded or could not be confirmed for `auth_stale_s`.
        """
        key, forwarded = _read(headers)
        if not self._catalog.ready:
            raise errors.unavailable(
                "The gateway has not been able to read its keys yet; try again shortly.",
                code="catalog_not_loaded",
                retry_after_s=_RETRY_AFTER_S,
            )
        if self._catalog.age_s() > self._auth_stale_s:
            raise errors.unavailable(
                "The gateway has not been able to confirm its keys for too long; try again shortly.",
                code="catalog_stale",
                retry_after_s=_RETRY_AFTER_S,
            )
        if key is None:
            raise errors.unauthorized(
                "No API key provided. Send one as 'Authorization: Bearer <key>' or 'x-api-key: <key>'."
            )
        identity = self._find(key)
        if identity is None:
            raise errors.unauthorized()
        self.check(identity, client_ip, forwarded)
        return identity

    def _find(self, key: bytes) -> Identity | None:
        """The key's identity in the present snapshot. OpenSSL's HMAC costs more than everything around it, so what it found is
        kept, while the snapshot stays, under a second keyed hash whose secret is this process's own."""
        snapshot = self._catalog.snapshot
        if snapshot is not self._known_in:
            self._known, self._known_in = {}, snapshot
        mark = blake2b(key, digest_size=MARK_BYTES, key=self._salt).digest()
        identity = self._known.get(mark)
        if identity is None and looks_like_key(key):
            identity = snapshot.keys.get(digest(self.pepper, key))
            if identity is not None:
                self._known[mark] = identity
        return identity

    def check(self, identity: Identity, client_ip: str | None, forwarded: Sequence[bytes]) -> None:
        """Whether the key may be used now and from this address; raises `ApiError` 401 or 403 as `identify` does."""
        if identity.revoked:
            raise errors.unauthorized("This API key has been revoked. Ask your operator for a new one.")
        if identity.expires_at_us is not None and self._clock_us() >= identity.expires_at_us:
            raise errors.unauthorized("This API key has expired. Ask your operator for a new one.")
        if identity.allowed_ips is not None:
            address = client_address(client_ip, forwarded, self._trusted)
            if address is None or not is_inside(address, identity.allowed_ips):
                raise errors.ip_not_allowed()


def check_model(identity: Identity, model: str) -> None:
    """Raises `ApiError` 403 when the key is restricted to other models."""
    if identity.models is not None and model not in identity.models:
        raise errors.model_not_allowed(model)


def bearer_token(value: bytes) -> bytes | None:
    """The token of an `Authorization` value with the scheme Bearer, in any case; None for another scheme."""
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


def _read(headers: Headers) -> tuple[bytes | None, list[bytes]]:
    """The key, `Authorization` before `x-api-key`, and the forwarded-for headers in order."""
    bearer = api_key = None
    forwarded: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            bearer = bearer or bearer_token(value)
        elif name == b"x-api-key":
            api_key = api_key or value.strip() or None
        elif name == b"x-forwarded-for":
            forwarded.append(value)
    return bearer or api_key, forwarded
