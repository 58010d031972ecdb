"""What tests of the counting-house share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from billing.database import open_database


@pytest.fixture
async def sqlite_database(sqlite_url: str) -> AsyncIterator[AsyncEngine]:
    """For what cannot differ between databases, because it is refused before one is asked."""
    engine = open_database(sqlite_url)
    yield engine
    await engine.dispose()
