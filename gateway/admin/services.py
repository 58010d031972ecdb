"""What the admin API needs of the running gateway, and the one way in which it writes."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from litestar.di import NamedDependency
from litestar.params import SkipValidation
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.database import bump_catalog_version, reading
from gateway.access.authenticator import Authenticator
from gateway.catalog import Catalog
from gateway.routing.routes import Router
from gateway.settings import Settings

logger = logging.getLogger(__name__)


class AdminServices(Protocol):
    @property
    def settings(self) -> Settings: ...

    @property
    def database(self) -> AsyncEngine: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def authenticator(self) -> Authenticator: ...

    @property
    def router(self) -> Router: ...


@dataclass(frozen=True, slots=True)
class CatalogWrite:
    """An open write: the transaction's connection, and the catalog version that it will publish."""

    connection: AsyncConnection
    version: int


class Rooms:
    """The services as controllers see them: a connection to read, a transaction to write the catalog, another for the books."""

    def __init__(self, services: AdminServices) -> None:
        self.services = services

    def read(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return reading(self.services.database)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[CatalogWrite]:
        """One transaction that begins by bumping the catalog version, so that writers queue and every process notices.

        After the commit this process sees its own write at once; the others at their next poll.
        """
        async with self.services.database.begin() as connection:
            yield CatalogWrite(connection, await bump_catalog_version(connection))
        try:
            await self.services.catalog.refresh()
        except Exception as error:  # the write stands; the poll will bring it
            logger.warning("written, but the catalog could not be read back at once: %s", type(error).__name__)

    def book(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """One transaction in the books that no catalog needs to hear of: wallets, corrections."""
        return self.services.database.begin()


Injected = NamedDependency[SkipValidation[Rooms]]
