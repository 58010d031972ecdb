"""The interface behind which limits are counted: memory for one process, Valkey or Redis for many.

Every operation is atomic and idempotent by request id, so that a command whose answer was lost can be sent again.

AdmissionError
├── StoreUnavailable    the store does not answer: nothing was decided
│   ├── EpochLost       it was wiped or restored from an older copy; its world has to be begun anew
│   └── Healing         it was, and processes are registering what they hold
└── AlreadyFinished     admit or amend of a request that was settled or released before
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from gateway.admission.claims import Answer, Base, BudgetWindow, Charge, Claim, Unshipped, View


class AdmissionError(Exception):
    """Base of the errors that stores raise; callers never see them, `Admission` turns them into API errors."""


class StoreUnavailable(AdmissionError):
    """`retry_after_us` is the store's own guess of when to come again."""

    def __init__(self, message: str, *, retry_after_us: int = 1_000_000) -> None:
        super().__init__(message)
        self.retry_after_us = retry_after_us


class EpochLost(StoreUnavailable):
    pass


class Healing(StoreUnavailable):
    pass


class AlreadyFinished(AdmissionError):
    pass


class LimitStore(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def admit(self, claim: Claim) -> Answer:
        """Reserve everything of `claim`, or nothing. A request id that holds a lease is granted again, uncounted."""
        ...

    async def amend(self, claim: Claim, tokens: int, charges: Sequence[Charge]) -> Answer:
        """Replace a lease's token estimate and reservations, or leave it as it was. Limits are checked for what is added.

        A lease that has expired meanwhile is taken anew, with its parallel slot. Raises `AlreadyFinished`.
        """
        ...

    async def settle(self, claim: Claim, tokens: int, amounts: Mapping[int, int]) -> bool:
        """Post the actual `amounts` (budget id -> nano) and tokens, give back the rest. False when done before.

        It posts also when the lease has expired: what was spent was spent.
        """
        ...

    async def release(self, claim: Claim) -> bool:
        """Give back everything, the request's place in the minute too: it reached no provider. False when done before."""
        ...

    async def renew(self, claims: Iterable[Claim]) -> None:
        """Push the expiry of these leases to now + ttl. One that expired or finished is left alone."""
        ...

    async def unshipped(self, windows: Collection[BudgetWindow], limit: int) -> Unshipped:
        """At most `limit` of the settlements that are counted on top of the bases (others each time, where there are more), and
        the versions of the bases of `windows`."""
        ...

    async def reconcile(self, bases: Mapping[BudgetWindow, Base], shipped: Collection[UUID]) -> bool:
        """Replace bases by the database's sums, and end the counting of `shipped` on top of them, as one step.

        A new base must contain what is `shipped` of it, and nothing that is unshipped and not in `shipped`. In a period without
        a new base, what is shipped moves into the old one. False, and nothing changed, when another reconciliation of one of
        `bases` came between.
        """
        ...

    async def view(self, scope: str, windows: Sequence[BudgetWindow]) -> View: ...
