"""One request, as it is priced and claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from uuid import UUID

from msgspec import Struct

from billing.budgets import BudgetRow
from billing.rating import Payer
from gateway.admission.claims import BudgetWindow, Scope
from gateway.admission.reservation import PricedRoute

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.catalog import Snapshot

R = TypeVar("R", bound=PricedRoute)


class Standing(NamedTuple):
    """What every request of one key has in common under one snapshot."""

    identity: Identity
    snapshot: Snapshot
    payer: Payer
    scopes: tuple[Scope, ...]
    budgets: tuple[BudgetRow, ...]
    hard: bool


class Asked(Struct, Generic[R]):
    """One request, as it is priced and claimed."""

    standing: Standing
    request_id: UUID
    at_us: int
    model_name: str
    input_tokens: int
    output_tokens: int
    """All choices together."""
    tokens: int
    scopes: tuple[Scope, ...]
    budgets: tuple[BudgetRow, ...]
    routes: list[R]
    costs: list[int]
    """What each route can settle at, at most, in nano of the payer's currency."""
    idle: list[BudgetWindow] = []
    """Hard budgets and wallets that nobody has drawn on for a while: what the store knows of them may be old."""
