"""One suite, two stores: `store` is memory and Valkey in turn, both on a simulated clock."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from gateway.admission.memory import MemoryStore
from gateway.admission.valkey import ValkeyStore
from tests.fixtures.valkey import ValkeyServer, valkey_server
from tests.gateway.admission.helpers import Clock

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


def unique_prefix() -> str:
    """Each test has its own keys on the session's server."""
    return f"{{test-{uuid.uuid4().hex}}}"
