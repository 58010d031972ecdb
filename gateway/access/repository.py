"""Every query on keys. Nothing here commits; a writer runs in a transaction that has bumped the catalog version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from billing.teams import TeamRow
from gateway.access.identity import Identity
from gateway.access.keys import NewKey
from gateway.access.tables import api_keys, installation, key_secrets
from gateway.admission.limits import UNLIMITED, Limits

PEPPER_FINGERPRINT: Final = "key_pepper_fingerprint"


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """What a key may do. None means no restriction; an empty collection means nothing is allowed."""

    models: tuple[str, ...] | None = None
    limits: Limits = UNLIMITED
    model_limits: Mapping[str, Limits] = field(default_factory=dict)
    allowed_ips: tuple[str, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    expires_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as it is stored; of the secret only the public id is known."""

    id: str
    team_id: str
    name: str
    public_id: str
    policy: KeyPolicy
    revoked_at_us: int | None
    created_at_us: int
    version: int


# --- reading --------------------------------------------------------------------------------------------------------


async def get_key(connection: AsyncConnection, key_id: str) -> KeyRow | None:
    row = (await connection.execute(sa.select(api_keys).where(api_keys.c.id == key_id))).one_or_none()
    return None if row is None else _key(row)


async def list_keys(
    connection: AsyncConnection, *, team_id: str | None, after: tuple[int, str] | None, limit: int
) -> list[KeyRow]:
    """Oldest first, from behind `after` (created_at_us, id)."""
    query = sa.select(api_keys).order_by(api_keys.c.created_at_us, api_keys.c.id).limit(limit)
    if team_id is not None:
        query = query.where(api_keys.c.team_id == team_id)
    if after is not None:
        query = query.where(sa.tuple_(api_keys.c.created_at_us, api_keys.c.id) > sa.tuple_(*after))
    return [_key(row) for row in await connection.execute(query)]


async def key_ids(connection: AsyncConnection, team_id: str) -> list[str]:
    """Every key of a team, the ended ones too."""
    return list(await connection.scalars(sa.select(api_keys.c.id).where(api_keys.c.team_id == team_id)))


async def load_identities(
    connection: AsyncConnection, teams: Mapping[str, TeamRow], *, since_version: int | None
) -> dict[bytes, Identity]:
    """The identity behind every secret, by its digest; with `since_version` only of keys changed after it."""
    query = sa.select(
        api_keys, key_secrets.c.digest, key_secrets.c.expires_at_us.label("secret_expires_at_us")
    ).join_from(key_secrets, api_keys)
    if since_version is not None:
        query = query.where(api_keys.c.version > since_version)
    return {bytes(row.digest): _identity(row, teams[row.team_id]) for row in await connection.execute(query)}


async def pepper_fingerprint(connection: AsyncConnection) -> str | None:
    query = sa.select(installation.c.value).where(installation.c.name == PEPPER_FINGERPRINT)
    return (await connection.execute(query)).scalar_one_or_none()


# --- writing --------------------------------------------------------------------------------------------------------


async def insert_key(connection: AsyncConnection, row: KeyRow, new: NewKey) -> None:
    """Store a new key and the digest of its secret."""
    values = {
        "id": row.id,
        "team_id": row.team_id,
        "name": row.name,
        "public_id": row.public_id,
        "created_at_us": row.created_at_us,
        "version": row.version,
        **_policy_values(row.policy),
    }
    await connection.execute(sa.insert(api_keys).values(values))
    await _insert_secret(connection, row.id, new.digest, row.created_at_us)


async def update_key(connection: AsyncConnection, key_id: str, *, name: str, policy: KeyPolicy, version: int) -> bool:
    """Change what a key may do. False when it is unknown or revoked: an edit in flight never brings a key back."""
    query = (
        sa.update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at_us.is_(None))
        .values(name=name, version=version, **_policy_values(policy))
    )
    return (await connection.execute(query)).rowcount == 1


async def revoke_key(connection: AsyncConnection, key_id: str, *, at_us: int, version: int) -> None:
    """End a key for good. The first revocation's time stays."""
    await connection.execute(
        sa.update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at_us.is_(None))
        .values(revoked_at_us=at_us, version=version)
    )


async def rotate_key(
    connection: AsyncConnection, key_id: str, new: NewKey, *, at_us: int, grace_us: int, version: int
) -> None:
    """Add a new secret; every former one ends after the grace period, or earlier if it was to end earlier."""
    ends_us = at_us + grace_us
    await connection.execute(
        sa.update(key_secrets)
        .where(
            key_secrets.c.key_id == key_id,
            sa.or_(key_secrets.c.expires_at_us.is_(None), key_secrets.c.expires_at_us > ends_us),
        )
        .values(expires_at_us=ends_us)
    )
    await _insert_secret(connection, key_id, new.digest, at_us)
    await connection.execute(sa.update(api_keys).where(api_keys.c.id == key_id).values(version=version))


async def record_pepper_fingerprint(connection: AsyncConnection, fingerprint: str) -> None:
    """Written once, by whoever is first; a later call changes nothing."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    values = {"name": PEPPER_FINGERPRINT, "value": fingerprint}
    await connection.execute(insert(installation).values(values).on_conflict_do_nothing())


async def _insert_secret(connection: AsyncConnection, key_id: str, digest: bytes, at_us: int) -> None:
    await connection.execute(sa.insert(key_secrets).values(digest=digest, key_id=key_id, created_at_us=at_us))


# --- rows -----------------------------------------------------------------------------------------------------------


def _policy_values(policy: KeyPolicy) -> dict[str, Any]:
    return {
        "models": None if policy.models is None else _json(policy.models),
        "limits": _json(policy.limits),
        "model_limits": _json(policy.model_limits),
        "allowed_ips": None if policy.allowed_ips is None else _json(policy.allowed_ips),
        "tags": _json(policy.tags),
        "expires_at_us": policy.expires_at_us,
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _policy(row: sa.Row[Any]) -> KeyPolicy:
    decode = msgspec.json.decode
    return KeyPolicy(
        models=None if row.models is None else decode(row.models, type=tuple[str, ...]),
        limits=decode(row.limits, type=Limits),
        model_limits=decode(row.model_limits, type=dict[str, Limits]),
        allowed_ips=None if row.allowed_ips is None else decode(row.allowed_ips, type=tuple[str, ...]),
        tags=decode(row.tags, type=dict[str, str]),
        expires_at_us=row.expires_at_us,
    )


def _key(row: sa.Row[Any]) -> KeyRow:
    return KeyRow(
        row.id, row.team_id, row.name, row.public_id, _policy(row), row.revoked_at_us, row.created_at_us, row.version
    )


def under_team(identity: Identity, team: TeamRow) -> Identity:
    """The identity as its team's row has it now."""
    return replace(
        identity,
        settlement_currency=team.settlement_currency,
        prepaid=team.billing == "prepaid",
        team_lost_charge=team.lost_charge,
    )


def _identity(row: sa.Row[Any], team: TeamRow) -> Identity:
    policy = _policy(row)
    ends = [end for end in (row.expires_at_us, row.secret_expires_at_us) if end is not None]
    return Identity(
        key_id=row.id,
        team_id=row.team_id,
        key_name=row.name,
        public_id=row.public_id,
        settlement_currency=team.settlement_currency,
        models=None if policy.models is None else frozenset(policy.models),
        limits=policy.limits,
        allowed_ips=None if policy.allowed_ips is None else tuple(ip_network(text) for text in policy.allowed_ips),
        expires_at_us=min(ends) if ends else None,
        tags=policy.tags,
        prepaid=team.billing == "prepaid",
        revoked=row.revoked_at_us is not None,
        team_lost_charge=team.lost_charge,
        model_limits=policy.model_limits,
    )
