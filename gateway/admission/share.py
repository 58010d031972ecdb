"""What one of several processes may use of a limit while it cannot ask the others (`when_store_down: local_share`).

Shares never add up to more than the limit, with one exception: a limit of requests or slots smaller than the number of
processes leaves each of them one, so that nobody is shut out. What others spent of a budget and the database does not show yet
is not known here: a budget can be exceeded by that much, and no more.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.admission.claims import BudgetWindow, Charge, Claim, Scope
from gateway.admission.limits import Limits


def share_of(claim: Claim, processes: int, base_nano: Callable[[BudgetWindow], int | None]) -> Claim:
    """`claim` with every limit divided; `base_nano` is what the database says was spent, which no share gives out again."""
    scopes = tuple(Scope(scope.name, _divided(scope.limits, processes)) for scope in claim.scopes)
    charges = []
    for charge in claim.charges:
        base = base_nano(BudgetWindow(charge.budget_id, charge.window)) or 0
        limit = base + max(0, charge.limit_nano - base) // processes
        charges.append(Charge(charge.budget_id, charge.amount_nano, limit, charge.window, charge.ends_us, charge.hard))
    return Claim(claim.request_id, scopes, claim.tokens, tuple(charges), claim.ttl_us)


def _divided(limits: Limits, processes: int) -> Limits:
    tokens = limits.tokens_per_minute
    return Limits(
        _at_least_one(limits.requests_per_minute, processes),
        None if tokens is None else tokens // processes,
        _at_least_one(limits.max_parallel, processes),
    )


def _at_least_one(limit: int | None, processes: int) -> int | None:
    return max(1, limit // processes) if limit else limit
