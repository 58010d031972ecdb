"""Signing in through a real OpenID Connect provider, which runs as a process of its own."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from gateway.access.pepper import Pepper
from gateway.dashboard.oidc import Started, _opened, _sealed, principal_of
from gateway.errors import ApiError
from gateway.settings import OidcSettings, SettingsError, load_settings
from tests.e2e.product import Product
from tests.gateway.dashboard.conftest import Browser, Visitor
from tests.gateway.dashboard.world import World


def leave(guest: Browser, back: str = "/dashboard") -> tuple[str, dict[str, str]]:
    """To the provider: its address and what it was asked."""
    answer = guest.client.get("/dashboard/oidc/start", params={"back": back})
    assert answer.status_code == 303, answer.text
    address = answer.headers["location"]
    return address, dict(parse_qsl(urlsplit(address).query))


def agree(address: str, sub: str, action: str = "") -> dict[str, str]:
    """What a person does at the provider; returns what the browser is sent back with."""
    with httpx.Client(trust_env=False) as client:
        answer = client.post(address, data={"sub": sub, "action": action})
    assert answer.status_code == 302, answer.text
    target = urlsplit(answer.headers["location"])
    assert (target.netloc, target.path) == ("localhost:1", "/dashboard/oidc")
    return dict(parse_qsl(target.query))


def test_a_person_with_a_role_comes_in_under_their_own_name(product: Product, visitor: Visitor, world: World) -> None:
    guest = visitor()
    assert "Sign in with the house" in guest.get("/sign-in").text
    address, asked = leave(guest, "/dashboard/prices?range=30d")
    assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
    answer = guest.get("/oidc?" + "&".join(f"{name}={value}" for name, value in agree(address, "mei").items()))
    assert 'url=/dashboard/prices?range=30d"' in answer.text
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    page = guest.get("/prices").text
    assert "mei@example.com" in page and "billing" in page and ">Access</a>" not in page
    log = guest.get("/audit?actor=mei@example.com").text
    assert "sign in" in log
    guest.post("/teams", {"name": "x", "settlement_currency": "USD"}, status=403)
    guest.post("/sign-out")
    guest.get("", status=303)
    assert "a-secret-of-the-tests" not in product.text


def test_a_leads_group_is_one_team(visitor: Visitor, world: World) -> None:
    guest = visitor()
    address, _ = leave(guest)
    guest.client.get("/dashboard/oidc", params=agree(address, "lin"))
    assert world.keys["assistant"] in guest.get(f"/teams/{world.search}").text
    guest.get(f"/teams/{world.ads}", status=404)


def test_nobody_else_comes_in(visitor: Visitor, world: World) -> None:
    guest = visitor()
    address, asked = leave(guest)
    without_a_role = guest.client.get("/dashboard/oidc", params=agree(address, "eve"))
    assert (without_a_role.status_code, guest.cookie) == (403, None)
    assert "has no role here" in without_a_role.text
    back = agree(address, "mei")
    tried: list[tuple[Browser, dict[str, str]]] = [
        (visitor(), back),  # login CSRF: somebody else's way back in another browser
        (guest, {**back, "state": "x" * 32}),
        (guest, {"code": back["code"]}),
        (guest, {**back, "code": "never-issued"}),
        (guest, agree(address, "mei", "deny") | {"state": asked["state"]}),
        (guest, {"state": asked["state"]}),
    ]
    for browser, query in tried:
        answer = browser.client.get("/dashboard/oidc", params=query)
        assert (answer.status_code, browser.cookie) == (403, None), query
    first = guest.client.get("/dashboard/oidc", params=back)
    assert first.status_code == 200
    assert visitor().client.get("/dashboard/oidc", params=back).status_code == 403


def test_the_verifier_stays_here_and_only_its_hash_goes_out(visitor: Visitor) -> None:
    guest = visitor()
    _, asked = leave(guest)
    cookie = guest.client.cookies.get("metergate_oidc")
    assert cookie is not None
    body = cookie.strip('"').partition(".")[0]
    started = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    hashed = base64.urlsafe_b64encode(hashlib.sha256(started["verifier"].encode()).digest()).decode().rstrip("=")
    assert asked["code_challenge"] == hashed
    assert started["verifier"] not in json.dumps(asked)
    assert (asked["state"], asked["nonce"]) == (started["state"], started["nonce"])


def test_what_was_begun_is_sealed_and_ends() -> None:
    pepper = Pepper(b"p" * 32, "test")
    started = Started("s", "n", "v", "/dashboard", 4_000_000_000)
    sealed = _sealed(pepper, started)
    assert _opened(pepper, sealed) == started
    assert _opened(Pepper(b"q" * 32, "test"), sealed) is None
    assert _opened(pepper, _sealed(pepper, Started("s", "n", "v", "/dashboard", 1))) is None
    for wrong in (None, "", ".", sealed[:-1], "x" + sealed, sealed.partition(".")[0]):
        assert _opened(pepper, wrong) is None


def test_a_name_is_a_verified_address_or_the_subject() -> None:
    settings = OidcSettings(issuer="https://id.example", claim="role", roles={"a": "owner", "b": "viewer"})
    claims: dict[str, Any] = {"sub": "7", "email": "admin", "role": "b"}
    assert (principal_of(settings, claims).name, principal_of(settings, claims).role) == ("sub:7", "viewer")
    assert principal_of(settings, {**claims, "email": "x@y", "email_verified": False}).name == "sub:7"
    assert principal_of(settings, {**claims, "email": "x@y", "role": ["b", "a"]}).role == "owner"
    nothing: tuple[object, ...] = (None, {}, [], 7, "c")
    for role in nothing:
        with pytest.raises(ApiError, match="has no role here"):
            principal_of(settings, {**claims, "role": role})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"ISSUER": "http://id.example"}, "https://"),
        ({"PUBLIC_URL": ""}, "https://"),
        ({"CLIENT_ID": ""}, "is needed"),
        ({"SCOPES": '["email"]'}, "openid"),
        ({"ROLES": '{"a": "king"}'}, "king"),
        ({"ROLES": '{"a": "team_admin"}'}, "team_admin:TEAM_ID"),
    ],
)
def test_settings_that_could_not_work_are_refused_by_name(environ: dict[str, str], said: str) -> None:
    whole = {"ISSUER": "https://id.example", "PUBLIC_URL": "https://gateway.example", "CLIENT_ID": "m", **environ}
    with pytest.raises(SettingsError, match="oidc") as refused:
        load_settings(None, {f"METERGATE_OIDC__{name}": value for name, value in whole.items()})
    assert said in str(refused.value)
