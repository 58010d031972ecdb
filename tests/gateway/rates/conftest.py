"""What tests of rate feeds share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database


@pytest.fixture
async def sqlite_database(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    """For faults of the other side, which no database can tell apart."""
    engine = open_database(sqlite_url)
    yield engine
    await engine.dispose()
