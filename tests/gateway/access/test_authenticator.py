from __future__ import annotations

from ipaddress import ip_network

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.times import now_us
from gateway.access.authenticator import Authenticator, check_model
from gateway.access.keys import new_key
from gateway.access.repository import KeyPolicy
from gateway.catalog import Catalog
from gateway.errors import ApiError
from tests.gateway.access.conftest import PEPPER, Desk

HOUR_US = 3_600_000_000


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"authorization", f"Bearer {key}".encode())]


def refusal(
    authenticator: Authenticator, headers: list[tuple[bytes, bytes]], peer: str | None = "203.0.113.9"
) -> ApiError:
    with pytest.raises(ApiError) as caught:
        authenticator.identify(headers, peer)
    return caught.value


async def test_a_key_is_known_as_bearer_and_as_x_api_key(catalog: Catalog, desk: Desk) -> None:
    row, key = await desk.key(await desk.team())
    await catalog.refresh()
    authenticator = Authenticator(catalog, PEPPER)
    for headers in (
        bearer(key),
        [(b"x-api-key", key.encode())],
        [(b"authorization", b"bearer  " + key.encode() + b" ")],
        [(b"x-api-key", b"sk-mg-other"), *bearer(key)],
        [(b"authorization", b"Basic abc"), (b"x-api-key", key.encode())],
    ):
        assert authenticator.identify(headers, "203.0.113.9").key_id == row.id


async def test_no_key_a_wrong_key_and_every_part_of_a_key_are_401_without_an_echo(catalog: Catalog, desk: Desk) -> None:
    _, key = await desk.key(await desk.team())
    await catalog.refresh()
    authenticator = Authenticator(catalog, PEPPER)
    missing = refusal(authenticator, [])
    assert (missing.status, missing.code) == (401, "invalid_api_key")
    assert "Authorization: Bearer" in missing.message
    wrong = [
        key[:-1],
        key + "x",
        key[1:],
        key.upper(),
        "sk-mg-" + "a" * 16 + "-" + "b" * 43,
        "' OR 1=1 --",
        "\xff\xfe",
        "x" * 100_000,
    ]
    for text in wrong:
        error = refusal(authenticator, [(b"authorization", b"Bearer " + text.encode("latin-1"))])
        assert (error.status, error.code, error.type) == (401, "invalid_api_key", "authentication_error")
        assert text[:12] not in error.message
    assert refusal(authenticator, [(b"authorization", b"Bearer")]).status == 401


async def test_a_key_hashed_under_another_pepper_is_unknown(catalog: Catalog, desk: Desk) -> None:
    await desk.key(await desk.team())
    await catalog.refresh()
    assert refusal(Authenticator(catalog, PEPPER), bearer(new_key(PEPPER).secret.reveal())).status == 401


async def test_rule_26_a_catalog_that_was_never_loaded_is_503_never_401(database: AsyncEngine) -> None:
    authenticator = Authenticator(Catalog(database, PEPPER), PEPPER)
    for headers in (bearer(new_key(PEPPER).secret.reveal()), [], bearer("nonsense")):
        error = refusal(authenticator, headers)
        assert (error.status, error.code) == (503, "catalog_not_loaded")
        assert error.headers["retry-after"] == "2"


async def test_expiry_is_to_the_microsecond(catalog: Catalog, desk: Desk) -> None:
    ends_us = now_us() + HOUR_US
    _, key = await desk.key(await desk.team(), KeyPolicy(expires_at_us=ends_us))
    await catalog.refresh()
    clock = {"now": ends_us - 1}
    authenticator = Authenticator(catalog, PEPPER, clock_us=lambda: clock["now"])
    authenticator.identify(bearer(key), None)
    clock["now"] = ends_us
    assert "expired" in refusal(authenticator, bearer(key)).message


async def test_rule_32c_a_key_bound_to_addresses_works_from_there_only(catalog: Catalog, desk: Desk) -> None:
    _, key = await desk.key(await desk.team(), KeyPolicy(allowed_ips=("198.51.100.0/24", "2001:db8::/32")))
    await catalog.refresh()
    plain = Authenticator(catalog, PEPPER)
    plain.identify(bearer(key), "198.51.100.7")
    plain.identify(bearer(key), "::ffff:198.51.100.7")
    plain.identify(bearer(key), "2001:db8::1")
    for peer in ("203.0.113.9", "2001:db9::1", None, "unix:"):
        error = refusal(plain, bearer(key), peer)
        assert (error.status, error.code) == (403, "ip_not_allowed")
    forged = [*bearer(key), (b"x-forwarded-for", b"198.51.100.7")]
    assert refusal(plain, forged, "203.0.113.9").status == 403
    proxied = Authenticator(catalog, PEPPER, trusted_proxies=(ip_network("10.0.0.0/8"),))
    proxied.identify(forged, "10.0.0.1")
    assert (
        refusal(proxied, [*bearer(key), (b"x-forwarded-for", b"198.51.100.7, 203.0.113.9")], "10.0.0.1").status == 403
    )


async def test_rule_08_a_key_restricted_to_models_may_use_those_only(catalog: Catalog, desk: Desk) -> None:
    team = await desk.team()
    _, some = await desk.key(team, KeyPolicy(models=("deepseek-chat",)))
    _, none = await desk.key(team, KeyPolicy(models=()))
    _, every = await desk.key(team)
    await catalog.refresh()
    authenticator = Authenticator(catalog, PEPPER)
    check_model(authenticator.identify(bearer(some), None), "deepseek-chat")
    check_model(authenticator.identify(bearer(every), None), "anything")
    for key, model in ((some, "gpt-4.1"), (none, "deepseek-chat")):
        with pytest.raises(ApiError) as caught:
            check_model(authenticator.identify(bearer(key), None), model)
        assert (caught.value.status, caught.value.code) == (403, "model_not_allowed")
