"""Role tokens: create, list, revoke. And `me`: who the caller's own credential says they are."""

from __future__ import annotations

from typing import ClassVar

from litestar import Controller, get, post
from litestar.params import FromPath, JSONBody
from msgspec import Struct

from billing.teams import get_team
from billing.times import now_us
from gateway.admin.failures import invalid, missing
from gateway.admin.paging import DEFAULT_LIMIT, Cursor, IdText, Limit, cut, decode_cursor
from gateway.admin.roles import Role
from gateway.admin.services import Editable, Injected
from gateway.admin.texts import Moment, Text, moment, moment_us
from gateway.admin.tokens import TokenRow, get_token, insert_token, list_tokens, new_token, revoke_token


class CreateToken(Struct, frozen=True, forbid_unknown_fields=True):
    """`team_id` belongs to the role team_admin and to no other. The name stands in the audit log."""

    name: Text
    role: Role
    team_id: Text | None = None
    expires_at: Moment | None = None


class TokenView(Editable, frozen=True, kw_only=True):
    id: str
    name: str
    role: Role
    team_id: str | None
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None


class NewTokenView(TokenView, frozen=True, kw_only=True):
    shown_once: ClassVar[bool] = True
    token: str
    """The whole token. It is not stored and cannot be shown again."""


class TokenPage(Struct, frozen=True):
    data: list[TokenView]
    next_cursor: str | None


class MeView(Struct, frozen=True):
    name: str
    role: Role
    team_id: str | None


class TokensController(Controller):
    path = "/tokens"
    tags = ("access",)

    @post(summary="Create a role's token; it is shown once")
    async def create(self, data: JSONBody[CreateToken], rooms: Injected) -> NewTokenView:
        if (data.role is Role.TEAM_ADMIN) != (data.team_id is not None):
            raise invalid("team_id: the role team_admin needs it, and no other role takes it", "team_id")
        token_id, secret = new_token()
        row = TokenRow(
            token_id, data.name, data.role, data.team_id, now_us(), moment_us(data.expires_at, "expires_at"), None
        )
        async with rooms.book() as connection:
            if data.team_id is not None and await get_team(connection, data.team_id) is None:
                raise invalid(f"team_id: there is no team {data.team_id!r}", "team_id")
            await insert_token(connection, row, secret, rooms.services.authenticator.pepper)
            view = rooms.done(_view(row), shown_once=True)
        return NewTokenView(
            id=view.id,
            name=view.name,
            role=view.role,
            team_id=view.team_id,
            created_at=view.created_at,
            expires_at=view.expires_at,
            revoked_at=view.revoked_at,
            token=secret.reveal(),
        )

    @get(summary="List tokens")
    async def index(self, rooms: Injected, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> TokenPage:
        async with rooms.read() as connection:
            rows = await list_tokens(connection, decode_cursor(cursor, IdText), limit + 1)
        page, next_cursor = cut(rows, limit, lambda row: row.id)
        return TokenPage([_view(row) for row in page], next_cursor)

    @get("/{token_id:str}", summary="One token")
    async def one(self, token_id: FromPath[str], rooms: Injected) -> TokenView:
        async with rooms.read() as connection:
            row = await get_token(connection, token_id)
        if row is None:
            raise missing("token", token_id[:100])
        return _view(row)

    @post("/{token_id:str}/revoke", status_code=200, summary="End a token for good, and its dashboard sessions")
    async def revoke(self, token_id: FromPath[str], rooms: Injected) -> TokenView:
        async with rooms.book() as connection:
            before = await get_token(connection, token_id)
            if before is None:
                raise missing("token", token_id[:100])
            rooms.editing(_view(before))
            await revoke_token(connection, token_id, now_us())
            after = await get_token(connection, token_id)
            assert after is not None
            return rooms.done(_view(after))


class MeController(Controller):
    path = "/me"
    tags = ("access",)

    @get(summary="Whose credential this is, and what it may do")
    async def me(self, rooms: Injected) -> MeView:
        principal = rooms.principal
        return MeView(principal.name, principal.role, principal.team_id)


def _view(row: TokenRow) -> TokenView:
    return TokenView(
        id=row.id,
        name=row.name,
        role=row.role,
        team_id=row.team_id,
        created_at=moment(row.created_at_us),
        expires_at=moment(row.expires_at_us),
        revoked_at=moment(row.revoked_at_us),
    )
