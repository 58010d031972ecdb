"""Who may do what: five roles, and one table of every admin route. A route that isn't in the table is the owner's alone.

owner        everything, tokens included
billing      reads everything; prices, rates, terms, budgets, wallets, corrections, statements
operator     reads everything; teams, keys, budgets
viewer       reads everything, changes nothing
team_admin   one team: its keys, its budgets, and what it used and was charged; neither our cost nor our margin
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal


class Role(StrEnum):
    OWNER = "owner"
    BILLING = "billing"
    OPERATOR = "operator"
    VIEWER = "viewer"
    TEAM_ADMIN = "team_admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who acts. `team_id` is a team admin's team and nobody else's; `token_id` is None for the admin key itself."""

    name: str
    role: Role
    team_id: str | None = None
    token_id: str | None = None

    def __post_init__(self) -> None:
        assert (self.role is Role.TEAM_ADMIN) == (self.team_id is not None)


ROOT: Final = Principal("admin", Role.OWNER)
"""Whoever holds the admin key."""

TeamFrom = Literal["path", "query", "body", "key", "request", "budget", "projects", "none"]
"""Where a route says whose it is: `team_id` in the path, the query or the body; the key, request or budget that the path names;
`project_ids` in the query; `none` where nothing of any team can be seen."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`team` is how a team admin's calls are held to their team; None: the route is closed to them."""

    roles: frozenset[Role]
    team: TeamFrom | None = None

    def allows(self, role: Role) -> bool:
        return self.team is not None if role is Role.TEAM_ADMIN else role in self.roles


def _by(*roles: Role, team: TeamFrom | None = None) -> Rule:
    return Rule(frozenset({Role.OWNER, *roles}), team)


def _read(team: TeamFrom | None = None) -> Rule:
    return _by(Role.BILLING, Role.OPERATOR, Role.VIEWER, team=team)


OWNER_ALONE: Final = _by()
_READ: Final = _read()
_BILLING: Final = _by(Role.BILLING)
_OPERATOR: Final = _by(Role.OPERATOR)
_BUDGETS: Final = _by(Role.BILLING, Role.OPERATOR)

ADMIN: Final = "/admin/v1"
ORGANIZATION: Final = "/v1/organization"

RULES: Final[Mapping[str, Rule]] = {
    "GET /admin/v1/me": _read("none"),
    "GET /admin/v1/teams": _READ,
    "POST /admin/v1/teams": _OPERATOR,
    "GET /admin/v1/teams/{team_id}": _read("path"),
    "PATCH /admin/v1/teams/{team_id}": _OPERATOR,
    "GET /admin/v1/keys": _read("query"),
    "POST /admin/v1/keys": _by(Role.OPERATOR, team="body"),
    "GET /admin/v1/keys/{key_id}": _read("key"),
    "PATCH /admin/v1/keys/{key_id}": _by(Role.OPERATOR, team="key"),
    "POST /admin/v1/keys/{key_id}/revoke": _by(Role.OPERATOR, team="key"),
    "POST /admin/v1/keys/{key_id}/rotate": _by(Role.OPERATOR, team="key"),
    "GET /admin/v1/prices": _READ,
    "POST /admin/v1/prices": _BILLING,
    "GET /admin/v1/prices/explain": _READ,
    "GET /admin/v1/prices/drift": _READ,
    "GET /admin/v1/price-books": _READ,
    "GET /admin/v1/price-books/{version}/diff": _READ,
    "POST /admin/v1/price-books/import": _BILLING,
    "GET /admin/v1/price-books/drafts": _READ,
    "POST /admin/v1/price-books/drafts": _BILLING,
    "GET /admin/v1/price-books/drafts/{draft_id}": _READ,
    "POST /admin/v1/price-books/drafts/{draft_id}/publish": _BILLING,
    "POST /admin/v1/price-books/drafts/{draft_id}/discard": _BILLING,
    "GET /admin/v1/rates": _READ,
    "POST /admin/v1/rates": _BILLING,
    "POST /admin/v1/rates/fetch": _BILLING,
    "GET /admin/v1/terms": _READ,
    "POST /admin/v1/terms": _BILLING,
    "GET /admin/v1/sell-prices": _READ,
    "POST /admin/v1/sell-prices": _BILLING,
    "GET /admin/v1/budgets": _read("query"),
    "POST /admin/v1/budgets": _BUDGETS,
    "GET /admin/v1/budgets/{budget_id}": _read("budget"),
    "POST /admin/v1/budgets/{budget_id}/end": _BUDGETS,
    "GET /admin/v1/usage": _read("query"),
    "GET /admin/v1/usage/focus": _read("query"),
    "GET /admin/v1/usage/requests": _read("query"),
    "GET /admin/v1/usage/requests/{request_id}": _read("request"),
    "GET /admin/v1/usage/requests/{request_id}/corrections": _READ,
    "POST /admin/v1/usage/requests/{request_id}/corrections": _BILLING,
    "POST /admin/v1/usage/rerating": _BILLING,
    "POST /admin/v1/usage/rerating/apply": _BILLING,
    "POST /admin/v1/what-if": _READ,
    "GET /admin/v1/reports/break-even": _READ,
    "GET /admin/v1/wallets": _READ,
    "GET /admin/v1/wallets/{team_id}": _read("path"),
    "PATCH /admin/v1/wallets/{team_id}": _BILLING,
    "GET /admin/v1/wallets/{team_id}/entries": _read("path"),
    "GET /admin/v1/wallets/{team_id}/events": _read("path"),
    "GET /admin/v1/wallets/{team_id}/check": _READ,
    "POST /admin/v1/wallets/{team_id}/top-ups": _BILLING,
    "POST /admin/v1/wallets/{team_id}/redemptions": _by(Role.BILLING, team="path"),
    "POST /admin/v1/wallets/{team_id}/adjustments": _BILLING,
    "POST /admin/v1/wallets/{team_id}/entries/{entry_id}/reverse": _BILLING,
    "GET /admin/v1/redemption-codes": _READ,
    "POST /admin/v1/redemption-codes": _BILLING,
    "GET /admin/v1/redemption-codes/{batch_id}": _READ,
    "GET /admin/v1/redemption-codes/{batch_id}/codes": _READ,
    "POST /admin/v1/redemption-codes/{batch_id}/end": _BILLING,
    "GET /admin/v1/statements": _READ,
    "POST /admin/v1/statements/{team_id}": _BILLING,
    "GET /admin/v1/statements/{team_id}": _read("path"),
    "GET /admin/v1/statements/{team_id}/{statement_id}": _read("path"),
    "POST /admin/v1/statements/{team_id}/{statement_id}/issue": _BILLING,
    "POST /admin/v1/statements/{team_id}/{statement_id}/credit-note": _BILLING,
    "POST /admin/v1/statements/{team_id}/{statement_id}/discard": _BILLING,
    "GET /admin/v1/routes": _READ,
    "GET /admin/v1/audit": _READ,
    "GET /admin/v1/audit/check": _READ,
    "GET /admin/v1/tokens": OWNER_ALONE,
    "POST /admin/v1/tokens": OWNER_ALONE,
    "GET /admin/v1/tokens/{token_id}": OWNER_ALONE,
    "POST /admin/v1/tokens/{token_id}/revoke": OWNER_ALONE,
    "GET /v1/organization/usage/completions": _read("projects"),
    "GET /v1/organization/costs": _read("projects"),
}
