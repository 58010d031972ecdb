"""Team keys: create, list, change, rotate, revoke. The key itself is shown once, in the answer that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from typing import Annotated, Any, ClassVar

from litestar import Controller, get, patch, post
from litestar.params import FromPath, FromQuery, JSONBody
from msgspec import UNSET, Meta, Struct, UnsetType

from billing.teams import get_team
from billing.times import now_us
from gateway.access import repository
from gateway.access.keys import new_key, random_id
from gateway.access.repository import KeyPolicy, KeyRow
from gateway.admin.failures import conflict, invalid, missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, IdText, Limit, RowId, cut, decode_cursor
from gateway.admin.services import CatalogWrite, Editable, Injected, Rooms
from gateway.admin.texts import Moment, TagName, Text, moment, moment_us
from gateway.admission.limits import MAX_LIMIT, Limits

MAX_GRACE_S = 30 * 86_400
DEFAULT_GRACE_S = 86_400

LimitValue = Annotated[int, Meta(ge=0, le=MAX_LIMIT)] | None
Names = Annotated[list[Text], Meta(max_length=1000)]
Tags = Annotated[dict[TagName, Annotated[str, Meta(max_length=256)]], Meta(max_length=32)]


class LimitsBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Null is no limit; 0 allows nothing."""

    requests_per_minute: LimitValue = None
    tokens_per_minute: LimitValue = None
    max_parallel: LimitValue = None


class CreateKey(Struct, frozen=True, forbid_unknown_fields=True):
    """Null means no restriction; an empty list allows nothing."""

    team_id: Text
    name: Text
    models: Names | None = None
    expires_at: Moment | None = None
    limits: LimitsBody | None = None
    model_limits: dict[Text, LimitsBody] | None = None
    allowed_ips: Names | None = None
    tags: Tags | None = None


class ChangeKey(Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays; null lifts a restriction."""

    name: Text | UnsetType = UNSET
    models: Names | UnsetType | None = UNSET
    expires_at: Moment | UnsetType | None = UNSET
    limits: LimitsBody | UnsetType | None = UNSET
    model_limits: dict[Text, LimitsBody] | UnsetType | None = UNSET
    allowed_ips: Names | UnsetType | None = UNSET
    tags: Tags | UnsetType | None = UNSET


class RotateKey(Struct, frozen=True, forbid_unknown_fields=True):
    grace_period_s: Annotated[
        int, Meta(ge=0, le=MAX_GRACE_S, description="How long the former secret still works.")
    ] = DEFAULT_GRACE_S


class KeyView(Editable, frozen=True, kw_only=True):
    id: str
    team_id: str
    name: str
    public_id: str
    models: tuple[str, ...] | None
    limits: Limits
    model_limits: Mapping[str, Limits]
    allowed_ips: tuple[str, ...] | None
    tags: Mapping[str, str]
    expires_at: str | None
    revoked_at: str | None
    created_at: str | None


class NewKeyView(KeyView, frozen=True, kw_only=True):
    shown_once: ClassVar[bool] = True
    key: str
    """The whole key. It is not stored and cannot be shown again."""
    former_works_until: str | None = None
    warnings: tuple[str, ...] = ()
    """What may be a slip: nothing was refused."""


class KeyPage(Struct, frozen=True):
    data: list[KeyView]
    next_cursor: str | None


class KeysController(Controller):
    path = "/keys"
    tags = ("keys",)

    @post(summary="Create a key; it is shown once")
    async def create(self, data: JSONBody[CreateKey], rooms: Injected) -> NewKeyView:
        policy = _changed(KeyPolicy(), ChangeKey(**{name: getattr(data, name) for name in _POLICY_FIELDS}))
        new = new_key(rooms.services.authenticator.pepper)
        async with rooms.write() as write:
            if await get_team(write.connection, data.team_id) is None:
                raise invalid(f"team_id: there is no team {data.team_id!r}", "team_id")
            row = KeyRow(
                f"key_{random_id()}", data.team_id, data.name, new.public_id, policy, None, now_us(), write.version
            )
            await repository.insert_key(write.connection, row, new)
            rooms.done(KeyView(**_fields(row)), shown_once=True)
        return NewKeyView(**_fields(row), key=new.secret.reveal(), warnings=tuple(_warnings(policy, rooms)))

    @get(summary="List keys, oldest first")
    async def index(
        self,
        rooms: Injected,
        team_id: FromQuery[str | None] = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_LIMIT,
    ) -> KeyPage:
        after = decode_cursor(cursor, tuple[RowId, IdText])
        async with rooms.read() as connection:
            rows = await repository.list_keys(connection, team_id=team_id, after=after, limit=limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: (row.created_at_us, row.id))
        return KeyPage([KeyView(**_fields(row)) for row in page], next_cursor)

    @get("/{key_id:str}", summary="One key")
    async def one(self, key_id: FromPath[str], rooms: Injected) -> KeyView:
        async with rooms.read() as connection:
            row = await repository.get_key(connection, key_id)
        if row is None:
            raise missing("key", key_id)
        return KeyView(**_fields(row))

    @patch("/{key_id:str}", summary="Change what a key may do")
    async def change(self, key_id: FromPath[str], data: JSONBody[ChangeKey], rooms: Injected) -> KeyView:
        async with rooms.write() as write:
            row = await _usable(write, key_id)
            rooms.editing(KeyView(**_fields(row)))
            row = replace(
                row,
                name=row.name if data.name is UNSET else data.name,
                policy=_changed(row.policy, data),
                version=write.version,
            )
            await repository.update_key(
                write.connection, key_id, name=row.name, policy=row.policy, version=write.version
            )
            return rooms.done(KeyView(**_fields(row)))

    @post("/{key_id:str}/revoke", status_code=200, summary="End a key for good; saying it twice changes nothing")
    async def revoke(self, key_id: FromPath[str], rooms: Injected) -> KeyView:
        async with rooms.write() as write:
            before = await repository.get_key(write.connection, key_id)
            if before is None:
                raise missing("key", key_id)
            rooms.editing(KeyView(**_fields(before)))
            await repository.revoke_key(write.connection, key_id, at_us=now_us(), version=write.version)
            row = await repository.get_key(write.connection, key_id)
            assert row is not None
            return rooms.done(KeyView(**_fields(row)))

    @post(
        "/{key_id:str}/rotate",
        status_code=200,
        summary="Give a key a new secret; the former one ends after a grace period",
    )
    async def rotate(
        self, key_id: FromPath[str], rooms: Injected, data: JSONBody[RotateKey | None] = None
    ) -> NewKeyView:
        grace_us = (data or RotateKey()).grace_period_s * 1_000_000
        at_us = now_us()
        async with rooms.write() as write:
            row = await _usable(write, key_id)
            new = new_key(rooms.services.authenticator.pepper, row.public_id)
            await repository.rotate_key(
                write.connection, key_id, new, at_us=at_us, grace_us=grace_us, version=write.version
            )
            rooms.editing(KeyView(**_fields(row)))
            rooms.done(KeyView(**_fields(row)), shown_once=True)
        return NewKeyView(**_fields(row), key=new.secret.reveal(), former_works_until=moment(at_us + grace_us))


_POLICY_FIELDS = ("models", "expires_at", "limits", "model_limits", "allowed_ips", "tags")


async def _usable(write: CatalogWrite, key_id: str) -> KeyRow:
    """The key, under the write lock. Raises `ApiError`: 404 unknown, 409 revoked."""
    row = await repository.get_key(write.connection, key_id)
    if row is None:
        raise missing("key", key_id)
    if row.revoked_at_us is not None:
        raise conflict(f"The key {key_id} is revoked, for good; create a new one.")
    return row


def _changed(policy: KeyPolicy, data: ChangeKey) -> KeyPolicy:
    """The policy with what the body names. Raises `ApiError` 422 and `InvalidTime`."""
    if data.models is not UNSET:
        policy = replace(policy, models=None if data.models is None else tuple(dict.fromkeys(data.models)))
    if data.expires_at is not UNSET:
        policy = replace(policy, expires_at_us=moment_us(data.expires_at, "expires_at"))
    if data.limits is not UNSET:
        policy = replace(policy, limits=_limits(data.limits or LimitsBody()))
    if data.model_limits is not UNSET:
        limits = {model: _limits(body) for model, body in (data.model_limits or {}).items()}
        policy = replace(policy, model_limits=limits)
    if data.allowed_ips is not UNSET:
        ips = None if data.allowed_ips is None else tuple(_network(text) for text in data.allowed_ips)
        policy = replace(policy, allowed_ips=ips)
    if data.tags is not UNSET:
        policy = replace(policy, tags=data.tags or {})
    return policy


def _limits(body: LimitsBody) -> Limits:
    return Limits(body.requests_per_minute, body.tokens_per_minute, body.max_parallel)


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise invalid(
            f"allowed_ips: {error}; write an address or a network such as 10.0.0.0/8", "allowed_ips"
        ) from error


def _fields(row: KeyRow) -> dict[str, Any]:
    policy = row.policy
    return {
        "id": row.id,
        "team_id": row.team_id,
        "name": row.name,
        "public_id": row.public_id,
        "models": policy.models,
        "limits": policy.limits,
        "model_limits": policy.model_limits,
        "allowed_ips": policy.allowed_ips,
        "tags": policy.tags,
        "expires_at": moment(policy.expires_at_us),
        "revoked_at": moment(row.revoked_at_us),
        "created_at": moment(row.created_at_us),
    }


def _warnings(policy: KeyPolicy, rooms: Rooms) -> list[str]:
    """A model that is not configured can be called by nobody: it may be misspelt, or come later."""
    known = [each.name for each in rooms.services.router.models()]
    return [
        f"{field}: no model {name!r} is configured; there is {', '.join(known) or 'none'}"
        for field, names in (("models", policy.models or ()), ("model_limits", policy.model_limits))
        for name in names
        if name not in known
    ]
