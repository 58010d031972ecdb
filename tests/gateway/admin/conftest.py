"""The admin API over a real database, asked through ASGI as a client would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import litestar
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database
from gateway.access.authenticator import Authenticator
from gateway.access.pepper import load_pepper
from gateway.admin.routes import admin_routers
from gateway.admission.admission import Admission
from gateway.admission.build import build_admission
from gateway.catalog import Catalog
from gateway.price_drift import PriceDrift
from gateway.routing.router import Router
from gateway.settings import Settings, load_settings

ADMIN_KEY = "admin-key-of-the-tests"

CONFIG = """\
providers:
  deepseek: {kind: openai, base_url: "http://127.0.0.1:9/v1"}
  local: {kind: engine, model: smollm2-135m-instruct, price_as: metergate}
models:
  - name: deepseek-chat
    routes:
      - {provider: deepseek, model: deepseek-chat, weight: 3}
      - {provider: local, model: smollm2-135m-instruct}
"""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Everything the admin API needs, without the caller's side."""

    settings: Settings
    database: AsyncEngine
    catalog: Catalog
    authenticator: Authenticator
    router: Router
    admission: Admission
    price_drift: PriceDrift


class Operator:
    """Speaks to the admin API with the admin key and insists on the expected status."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.authorization = f"Bearer {ADMIN_KEY}"

    async def ask(self, method: str, path: str, body: object = None, *, status: int = 200, **query: object) -> Any:
        parameters = {name: str(value) for name, value in query.items()}
        answer = await self.client.request(
            method,
            f"/admin/v1{path}",
            json=body,
            params=parameters or None,
            headers={"authorization": self.authorization},
        )
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def get(self, path: str, *, status: int = 200, **query: object) -> Any:
        return await self.ask("GET", path, status=status, **query)

    async def post(self, path: str, body: object = None, *, status: int = 201) -> Any:
        return await self.ask("POST", path, body, status=status)

    async def patch(self, path: str, body: object, *, status: int = 200) -> Any:
        return await self.ask("PATCH", path, body, status=status)

    async def refused(
        self, path: str, body: object, *, status: int = 422, method: str = "POST"
    ) -> tuple[str | None, str]:
        """The field and the message of a refusal."""
        error = (await self.ask(method, path, body, status=status))["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error["param"], error["message"]

    async def team(self, name: str = "search", currency: str = "CNY") -> str:
        team = await self.post("/teams", {"name": name, "settlement_currency": currency})
        assert isinstance(team["id"], str)
        return team["id"]


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG)
    environ = {
        "METERGATE_HOME": str(tmp_path / "var"),
        "METERGATE_ADMIN_KEY": ADMIN_KEY,
        "METERGATE_DATABASE_URL": database_url,
    }
    return load_settings(config, environ)


@pytest.fixture
async def gateway(settings: Settings) -> AsyncIterator[Gateway]:
    database = open_database(settings.database_url)
    pepper = load_pepper(settings)
    catalog = Catalog(database, pepper, poll_s=0.05)
    await catalog.start()
    router = Router(settings)
    admission = build_admission(settings, catalog, database)
    await admission.start()
    drift = PriceDrift(catalog, None)
    yield Gateway(settings, database, catalog, Authenticator(catalog, pepper), router, admission, drift)
    await admission.stop()
    await catalog.stop()
    await router.aclose()
    await database.dispose()


class Current:
    """Stands for the gateway of whichever test runs: putting all the routes together takes longer than most tests."""

    gateway: Gateway

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gateway, name)


@pytest.fixture(scope="session")
def shared_app() -> Callable[[Gateway], litestar.Litestar]:
    current = Current()
    made: list[litestar.Litestar] = []

    def app_over(gateway: Gateway) -> litestar.Litestar:
        current.gateway = gateway
        if not made:
            made.append(litestar.Litestar(admin_routers(cast(Gateway, current))))
        return made[0]

    return app_over


@pytest.fixture
def app(gateway: Gateway, shared_app: Callable[[Gateway], litestar.Litestar]) -> litestar.Litestar:
    return shared_app(gateway)


@pytest.fixture
async def client(app: litestar.Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=cast(Any, app)), base_url="http://gateway"
    ) as client:
        yield client


@pytest.fixture
def operator(client: httpx.AsyncClient) -> Operator:
    return Operator(client)
