"""Signing in through an OpenID Connect provider: authorization code with PKCE, state and nonce; the id token's signature, issuer,
audience, time and nonce are checked (OpenID Connect Core 1.0, 3.1.3.7). Authlib speaks OAuth, joserfc reads the token.

What the way there has to remember lies in a cookie under our own keyed hash, for ten minutes: no row is written for strangers.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import time
from typing import Any, Final

import httpx
import msgspec

from gateway import errors
from gateway.access.pepper import Pepper
from gateway.admin.roles import Principal, Role
from gateway.dashboard.sessions import keyed
from gateway.settings import OidcSettings

COOKIE: Final = "metergate_oidc"
LIFE_S: Final = 600
TIMEOUT_S: Final = 10.0
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_CALLBACK: Final = "/dashboard/oidc"


class Started(msgspec.Struct, frozen=True):
    """What one sign-in has to remember until the browser comes back."""

    state: str
    nonce: str
    verifier: str
    back: str
    ends_s: int


class Metadata(msgspec.Struct, frozen=True):
    """Of the provider's discovery document, what is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


def credential_of(settings: OidcSettings) -> bytes | None:
    """What sessions opened this way stand on: another provider or client ends them."""
    return None if settings.issuer is None else f"oidc {settings.issuer} {settings.client_id}".encode()


async def begin(settings: OidcSettings, pepper: Pepper, back: str) -> tuple[str, str]:
    """The provider's address to go to, and the cookie to go with. Raises `ApiError` 502 when it does not answer."""
    started = Started(
        secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), back, int(time.time()) + LIFE_S
    )
    metadata = await _discover(settings)
    async with _client(settings) as client:
        address, _ = client.create_authorization_url(
            metadata.authorization_endpoint, state=started.state, code_verifier=started.verifier, nonce=started.nonce
        )
    return str(address), _sealed(pepper, started)


async def finish(
    settings: OidcSettings, pepper: Pepper, cookie: str | None, query: dict[str, str]
) -> tuple[Principal, str]:
    """Who came back, and where they were going. Raises `ApiError`: 403 for a way that we did not begin, a refusal, a token that
    does not check, or somebody without a role; 502 when the provider does not answer."""
    started = _opened(pepper, cookie)
    if started is None or not hmac.compare_digest(started.state.encode(), query.get("state", "").encode()):
        raise _refused("This sign-in was not begun here, or took too long. Begin again.")
    if "code" not in query:
        raise _refused(f"The provider refused: {query.get('error', 'no code')[:100]}.")
    metadata = await _discover(settings)
    try:
        async with _client(settings) as client:
            token = await client.fetch_token(
                metadata.token_endpoint, code=query["code"], code_verifier=started.verifier, state=started.state
            )
    except httpx.HTTPError as error:
        raise _silent(settings) from error
    except Exception as error:  # Authlib's own tree, for every answer that is no token
        raise _refused("The provider did not accept its own code.") from error
    claims = await _claims(settings, metadata, str(token.get("id_token", "")), started.nonce)
    return principal_of(settings, claims), started.back


def principal_of(settings: OidcSettings, claims: dict[str, Any]) -> Principal:
    """The first role, in the order of the settings, that a value of the claim stands for. Raises `ApiError` 403 without one."""
    found = claims.get(settings.claim)
    values = {found} if isinstance(found, str) else set(found) if isinstance(found, list) else set()
    email = claims.get("email")
    named = isinstance(email, str) and "@" in email and claims.get("email_verified", True) is True
    name = str(email if named else f"sub:{claims['sub']}")[:200]
    for value, role in settings.roles.items():
        if value in values:
            kind, _, team = role.partition(":")
            return Principal(name, Role(kind), team or None)
    raise _refused(f"{name} has no role here: the claim {settings.claim} has none of the values that oidc.roles names.")


async def _claims(settings: OidcSettings, metadata: Metadata, id_token: str, nonce: str) -> dict[str, Any]:
    from joserfc import jwt
    from joserfc.errors import JoseError
    from joserfc.jwk import KeySet

    keys = await _get(settings, metadata.jwks_uri)
    try:
        token = jwt.decode(id_token, KeySet.import_key_set(keys), algorithms=list(ALGORITHMS))
        registry = jwt.JWTClaimsRegistry(
            leeway=30,
            iss={"essential": True, "value": metadata.issuer},
            aud={"essential": True, "value": settings.client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        registry.validate(token.claims)
    except (JoseError, ValueError, KeyError) as error:
        raise _refused(f"The provider's id token does not check: {type(error).__name__}.") from error
    return dict(token.claims)


async def _discover(settings: OidcSettings) -> Metadata:
    issuer = str(settings.issuer)
    found = await _get(settings, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    try:
        metadata = msgspec.convert(found, Metadata)
    except msgspec.ValidationError as error:
        raise _silent(settings) from error
    if metadata.issuer.rstrip("/") != issuer.rstrip("/"):
        raise _silent(settings)
    return metadata


async def _get(settings: OidcSettings, address: str) -> Any:
    try:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            answer = await client.get(address)
            answer.raise_for_status()
            return answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _silent(settings) from error


def _client(settings: OidcSettings) -> Any:
    try:
        from authlib.integrations.httpx_client import AsyncOAuth2Client
    except ImportError as error:
        raise errors.unavailable("Signing in through a provider needs: pip install metergate[oidc]") from error
    return AsyncOAuth2Client(
        settings.client_id,
        None if settings.client_secret is None else settings.client_secret.reveal(),
        token_endpoint_auth_method="none" if settings.client_secret is None else "client_secret_basic",
        scope=" ".join(settings.scopes),
        redirect_uri=settings.public_url.rstrip("/") + _CALLBACK,
        code_challenge_method="S256",
        timeout=TIMEOUT_S,
        trust_env=False,
    )


def _sealed(pepper: Pepper, started: Started) -> str:
    body = base64.urlsafe_b64encode(msgspec.json.encode(started)).decode().rstrip("=")
    return f"{body}.{keyed(pepper, b'dashboard oidc', body.encode()).hex()}"


def _opened(pepper: Pepper, cookie: str | None) -> Started | None:
    body, _, seal = (cookie or "").partition(".")
    if not hmac.compare_digest(keyed(pepper, b"dashboard oidc", body.encode()).hex(), seal):
        return None
    try:
        started = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Started)
    except (binascii.Error, msgspec.DecodeError):
        return None
    return started if started.ends_s > time.time() else None


def _refused(message: str) -> errors.ApiError:
    return errors.forbidden(message, code="sign_in_refused")


def _silent(settings: OidcSettings) -> errors.ApiError:
    return errors.bad_gateway(
        f"{settings.name} does not answer as an OpenID Connect provider. Try again, or use a token."
    )
