"""Role tokens `sk-mg-op-<id>-<secret>`: made, found and revoked. Only a keyed hash is stored, as for team keys."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.access.keys import SECRET_BYTES, digest, random_id
from gateway.access.pepper import Pepper
from gateway.admin.roles import Principal, Role
from gateway.admin.tables import admin_tokens
from gateway.secret import Secret

PREFIX: Final = "sk-mg-op-"
_SHAPE: Final = re.compile(rb"sk-mg-op-[a-z2-7]{16}-[A-Za-z0-9_]{43}")


@dataclass(frozen=True, slots=True)
class TokenRow:
    id: str
    name: str
    role: Role
    team_id: str | None
    created_at_us: int
    expires_at_us: int | None
    revoked_at_us: int | None

    def principal(self) -> Principal:
        return Principal(self.name, self.role, self.team_id, self.id)

    def works_at(self, at_us: int) -> bool:
        return self.revoked_at_us is None and (self.expires_at_us is None or at_us < self.expires_at_us)


_COLUMNS: Final = [admin_tokens.c[name] for name in TokenRow.__dataclass_fields__]


def new_token() -> tuple[str, Secret]:
    """An id, and the token that is shown once."""
    name = random_id()
    body = secrets.token_urlsafe(SECRET_BYTES).replace("-", "_")
    return f"tok_{name}", Secret(f"{PREFIX}{name}-{body}")


def looks_like_token(presented: bytes) -> bool:
    return _SHAPE.fullmatch(presented) is not None


async def insert_token(connection: AsyncConnection, row: TokenRow, secret: Secret, pepper: Pepper) -> None:
    values = {name: getattr(row, name) for name in TokenRow.__dataclass_fields__}
    values["digest"] = digest(pepper, secret.reveal().encode())
    await connection.execute(sa.insert(admin_tokens).values(values))


async def find_token(connection: AsyncConnection, presented: bytes, pepper: Pepper) -> TokenRow | None:
    """The token that was presented, whether it still works or not, by its whole keyed hash."""
    query = sa.select(*_COLUMNS).where(admin_tokens.c.digest == digest(pepper, presented))
    row = (await connection.execute(query)).one_or_none()
    return None if row is None else _token(row)


async def get_token(connection: AsyncConnection, token_id: str) -> TokenRow | None:
    row = (await connection.execute(sa.select(*_COLUMNS).where(admin_tokens.c.id == token_id))).one_or_none()
    return None if row is None else _token(row)


async def list_tokens(connection: AsyncConnection, after: str | None, limit: int) -> list[TokenRow]:
    query = sa.select(*_COLUMNS).order_by(admin_tokens.c.id).limit(limit)
    if after is not None:
        query = query.where(admin_tokens.c.id > after)
    return [_token(row) for row in await connection.execute(query)]


async def revoke_token(connection: AsyncConnection, token_id: str, at_us: int) -> None:
    """For good; the first revocation's time stays."""
    await connection.execute(
        sa.update(admin_tokens)
        .where(admin_tokens.c.id == token_id, admin_tokens.c.revoked_at_us.is_(None))
        .values(revoked_at_us=at_us)
    )


def _token(row: sa.Row[Any]) -> TokenRow:
    return TokenRow(**{**row._mapping, "role": Role(row.role)})
