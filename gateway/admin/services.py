"""What the admin API needs of the running gateway, and the one way in which it writes.

A write is one transaction that also holds its entry in the audit log and its idempotency key: all stand or none does.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeVar

import msgspec
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from billing.database import bump_catalog_version, reading
from gateway.access.authenticator import Authenticator
from gateway.admin import audit, idempotency
from gateway.admin.failures import changed_meanwhile
from gateway.admin.roles import ROOT, Principal, Role
from gateway.admission.admission import Admission
from gateway.catalog import Catalog
from gateway.price_drift import PriceDrift
from gateway.routing.router import Router
from gateway.settings import Settings

logger = logging.getLogger(__name__)

View = TypeVar("View")


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

    @property
    def admission(self) -> Admission: ...

    @property
    def price_drift(self) -> PriceDrift: ...


class Editable(Struct, frozen=True):
    """A view of something that can be edited: its answers carry an ETag, and an edit may say If-Match."""

    shown_once: ClassVar[bool] = False
    """Whether it holds a secret besides: then it is no version of the thing."""


def etag(view: Editable) -> str:
    return f'"{hashlib.sha256(msgspec.json.encode(view)).hexdigest()[:32]}"'


@dataclass(frozen=True, slots=True)
class CatalogWrite:
    """An open write: the transaction's connection, and the catalog version that it will publish."""

    connection: AsyncConnection
    version: int


@dataclass(frozen=True, slots=True)
class Acting:
    """One request of one principal. `action` is its route, `target` its path below the API's; `request` a hash of all it says."""

    principal: Principal
    address: str | None
    action: str
    target: str
    idempotency_key: str | None = None
    request: str = ""
    if_match: str | None = None


FIRST_START: Final = Acting(Principal("metergate", Role.OWNER), None, "first start", "/")


class Rooms:
    """The services as controllers see them during one request: a connection to read, a transaction to write the catalog, another
    for the books. What a write changes is said by `editing` (before) and `done` (after)."""

    def __init__(self, services: AdminServices, acting: Acting = FIRST_START) -> None:
        self.services = services
        self.acting = acting
        self._before: str | None = None
        self._after: str | None = None
        self._answer = "null"
        self._secret = False
        self._target = acting.target

    @property
    def principal(self) -> Principal:
        return self.acting.principal

    def actor(self, said: str) -> str:
        """Who stands in the books: whoever the body names, where the admin key itself speaks; else the token's own name."""
        return said if self.principal == ROOT else self.principal.name

    def read(self) -> AbstractAsyncContextManager[AsyncConnection]:
        return reading(self.services.database)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[CatalogWrite]:
        """One transaction that begins by bumping the catalog version, so that writers queue and every process notices.

        After the commit this process sees its own write at once; the others at their next poll.
        """
        async with self.services.database.begin() as connection:
            version = await bump_catalog_version(connection)
            await self.refuse_second(connection)
            yield CatalogWrite(connection, version)
            await self._enter(connection)
        try:
            await self.services.catalog.refresh()
        except Exception as error:  # the write stands; the poll will bring it
            logger.warning("written, but the catalog could not be read back at once: %s", type(error).__name__)

    @asynccontextmanager
    async def book(self) -> AsyncIterator[AsyncConnection]:
        """One transaction in the books that no catalog needs to hear of: wallets, corrections, tokens."""
        async with self.services.database.begin() as connection:
            await self.refuse_second(connection)
            yield connection
            await self._enter(connection)

    @asynccontextmanager
    async def part(self) -> AsyncIterator[AsyncConnection]:
        """One transaction of a write that takes several, with its own entry in the log; `book` is the last of them."""
        async with self.services.database.begin() as connection:
            await self.refuse_second(connection)
            yield connection
            await self._log(connection)

    def editing(self, view: object) -> None:
        """What stands there, in the transaction that changes it. Raises `ApiError` 412 where If-Match names another version."""
        self._before = audit.text_of(view)
        wanted = self.acting.if_match
        if wanted is not None and wanted != "*" and isinstance(view, Editable) and etag(view) != wanted:
            raise changed_meanwhile(etag(view))

    def done(self, view: View, *, shown_once: bool = False) -> View:
        """What stands there now, in the same transaction: it is logged, and is the answer (`shown_once`: less its secret)."""
        self._after = audit.text_of(view)
        self._answer = msgspec.json.encode(view).decode()
        self._secret = shown_once
        identifier = str(getattr(view, "id", ""))
        parts = self.acting.target.split("/")
        if identifier in parts:
            self._target = "/".join(parts[: parts.index(identifier) + 1]) or self.acting.target
        elif identifier:
            self._target = f"{self.acting.target}/{identifier}"
        return view

    async def refuse_second(self, connection: AsyncConnection) -> None:
        """For a write that has to look before it begins: the key is asked first. Raises as `idempotency.refuse_second`."""
        acting = self.acting
        if acting.idempotency_key is not None:
            await idempotency.refuse_second(connection, self._owner, acting.idempotency_key, acting.request)

    async def _enter(self, connection: AsyncConnection) -> None:
        acting = self.acting
        if acting.idempotency_key is not None:
            await idempotency.remember(
                connection, self._owner, acting.idempotency_key, acting.request, self._answer, secret=self._secret
            )
        await self._log(connection)

    async def _log(self, connection: AsyncConnection) -> None:
        acting = self.acting
        await audit.append(
            connection,
            actor=acting.principal.name,
            role=acting.principal.role,
            address=acting.address,
            action=acting.action,
            target=self._target,
            before=self._before,
            after=self._after,
        )

    @property
    def _owner(self) -> str:
        """Whose idempotency keys these are: two tokens may share a name."""
        return self.principal.token_id or self.principal.name


Injected = NamedDependency[SkipValidation[Rooms]]
