"""One suite, two stores: `store` is memory and Valkey in turn, on a simulated clock; `house` is an `Admission` over each."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from billing.database import open_database
from gateway.admission.memory import MemoryStore
from gateway.admission.store import LimitStore
from gateway.admission.valkey import ValkeyStore
from tests.fixtures.valkey import ValkeyServer, valkey_server
from tests.gateway.admission.helpers import Clock
from tests.gateway.admission.house import House

__all__ = ["valkey_server"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "valkey"])
async def store(
    request: pytest.FixtureRequest, clock: Clock, valkey_server: ValkeyServer
) -> AsyncIterator[MemoryStore | ValkeyStore]:
    made: MemoryStore | ValkeyStore
    if request.param == "memory":
        made = MemoryStore(clock)
    else:
        made = ValkeyStore(valkey_server.url, prefix=unique_prefix(), heal_us=0, clock=clock, timeout_s=5)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture(params=["memory", "valkey"])
async def house(request: pytest.FixtureRequest, sqlite_url: str, valkey_server: ValkeyServer) -> AsyncIterator[House]:
    """An admission over a real database, with either store; both on the true clock."""
    made: LimitStore = MemoryStore()
    if request.param == "valkey":
        made = ValkeyStore(valkey_server.url, prefix=unique_prefix(), heal_us=0, timeout_s=5)
    engine = open_database(sqlite_url)
    built = await House.build(engine, made)
    yield built
    await built.admission.stop()
    await engine.dispose()


def unique_prefix() -> str:
    """Each test has its own keys on the session's server."""
    return f"{{test-{uuid.uuid4().hex}}}"
