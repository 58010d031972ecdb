"""What one admitted request holds, and what it counts in a budget when it is over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar
from uuid import UUID

from msgspec import Struct

from billing.budgets import BudgetRow
from billing.errors import NoRate
from billing.rating import Rated
from billing.spending import MOST
from billing.usage import Usage
from gateway.admission.claims import Claim
from gateway.admission.reservation import PricedRoute, listed_nano
from gateway.admission.wallet import WALLET

if TYPE_CHECKING:
    from gateway.access.identity import Identity
    from gateway.catalog import Snapshot

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=PricedRoute)


class Lease(Struct, Generic[R], weakref=True, eq=False):
    """What one admitted request holds. A lease that nobody holds on to is no longer renewed and expires.

    `output_cap` is the cap per choice to send upstream, the one that was reserved; None: the caller named none, and need not.
    `routes` are the candidates that the reservation covers, in their order: another one needs `Admission.amend` first.
    `reserved` is what the journal writes; `lines` tell the caller of its limits, as headers on the wire.
    """

    request_id: UUID
    identity: Identity
    lines: bytes
    output_cap: int | None
    reserved: Usage
    routes: tuple[R, ...]
    claim: Claim
    snapshot: Snapshot
    at_us: int
    budgets: tuple[BudgetRow, ...] = ()
    finished: bool = False


def actual_nano(lease: Lease[R], budget: BudgetRow, reserved_nano: int, rated: Rated | None) -> int:
    """What the request counts in this budget. Without an amount it is what was reserved: it may have cost that."""
    if rated is None:
        return reserved_nano
    if rated.overflow:
        return 2 * MOST if budget.scope == WALLET else MOST  # no balance makes up for it, and no limit
    if budget.scope != "all":
        settled = rated.settled
        if settled is not None and settled.currency == budget.currency:
            return settled.nano
        return max(reserved_nano, rated.known_nano)
    snapshot = lease.snapshot
    try:
        listed = listed_nano(snapshot.books, snapshot.pins, lease.at_us, rated, budget.currency)
    except NoRate as error:
        logger.warning("budget %d cannot count request %s: %s", budget.id, lease.request_id, error)
        listed = None
    return reserved_nano if listed is None else listed
