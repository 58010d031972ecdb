"""One world and one gateway over it for all tests here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.e2e.product import Product
from tests.gateway.dashboard.identity_provider import SETTINGS, oidc_provider
from tests.gateway.dashboard.world import ADMIN_KEY, World, build, provider, serving


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with provider(folder) as upstream, oidc_provider() as port:
        world = build(folder, upstream)
        world.config.write_text(world.config.read_text() + SETTINGS.format(port=port, team=world.search))
        yield world


@pytest.fixture(scope="session")
def product(world: World) -> Iterator[Product]:
    with serving(world) as product:
        yield product


@dataclass(frozen=True, slots=True)
class Browser:
    """A client with a cookie jar that follows no redirect, signed in with `credential` unless that is empty."""

    client: httpx.Client

    def get(self, path: str, status: int = 200, **headers: str) -> httpx.Response:
        answer = self.client.get(f"/dashboard{path}", headers=headers)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[-400:]}"
        return answer

    def post(
        self, path: str, form: dict[str, str] | None = None, *, csrf: bool = True, status: int = 303, **headers: str
    ) -> httpx.Response:
        sent = {**(form or {}), **({"csrf": self.csrf} if csrf else {})}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.client.post(f"/dashboard{path}", data=sent, headers=named)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[-400:]}"
        return answer

    def sign_in(self, credential: str, back: str = "/dashboard", status: int = 303) -> httpx.Response:
        return self.post("/sign-in", {"key": credential, "back": back}, csrf=False, status=status)

    @property
    def csrf(self) -> str:
        found = re.search(r'name="csrf" value="([0-9a-f]{64})"', self.get("/requests").text)
        assert found is not None
        return found[1]

    @property
    def cookie(self) -> str | None:
        return self.client.cookies.get("metergate_session", path="/dashboard")


Visitor = Callable[..., Browser]
"""`visitor()` is a stranger, `visitor(credential)` somebody signed in; all are closed after the test."""


@pytest.fixture
def visitor(product: Product) -> Iterator[Visitor]:
    clients: list[httpx.Client] = []

    def enter(credential: str = "") -> Browser:
        clients.append(httpx.Client(base_url=product.url, trust_env=False, verify=False, timeout=30))
        made = Browser(clients[-1])
        if credential:
            made.sign_in(credential)
        return made

    yield enter
    for client in clients:
        client.close()


@pytest.fixture
def owner(visitor: Visitor) -> Browser:
    return visitor(ADMIN_KEY)
