"""The books' side of one request: its lease, its journalled attempts, and the one outcome that closes it.

Law: a request whose first attempt was opened is closed exactly once, and settled with the limit store exactly once,
whichever way it ends. One that opened nothing is released.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from billing.rating import Rated
from billing.usage import Usage
from gateway.errors import ApiError, unavailable
from gateway.ids import new_request_id, time_us_of
from gateway.metering.bill import rate_request
from gateway.metering.errors import JournalError, MeteringError
from gateway.metering.records import AttemptOpened, AttemptOutcome, RequestClosed
from gateway.settings_routing import CACHE

if TYPE_CHECKING:
    from billing.money import Money
    from gateway.access.identity import Identity
    from gateway.admission.lease import Lease
    from gateway.catalog import Snapshot
    from gateway.routing.routes import Route
    from gateway.services import Services
    from gateway.upstream.base import Call

logger = logging.getLogger(__name__)

COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"

NOTHING: Final = Usage()


class Account:
    """`begun_ns` is the monotonic clock at arrival; durations in the records are measured from it."""

    __slots__ = (
        "_services", "answered", "attempts", "begun_ns", "blamed", "closed", "estimated", "identity", "lease", "opened",
        "rated", "request_id", "route", "settled", "snapshot", "status", "trace", "ttft_us",
    )  # fmt: skip

    def __init__(self, services: Services) -> None:
        self._services = services
        self.begun_ns = time.monotonic_ns()
        self.request_id = new_request_id()
        self.identity: Identity | None = None
        self.snapshot: Snapshot | None = None
        self.lease: Lease[Route] | None = None
        self.route: Route | None = None
        self.opened: list[AttemptOpened] = []
        self.attempts: list[AttemptOutcome] = []
        self.blamed: list[Route] = []
        """Routes against which this request has counted."""
        self.answered: int | None = None
        self.estimated = False
        self.ttft_us: int | None = None
        self.status = FAILED
        self.rated: Rated | None = None
        self.closed = False
        self.settled = False
        self.trace = ""
        """The caller's `traceparent`, where traces are on."""

    def elapsed_us(self) -> int:
        return (time.monotonic_ns() - self.begun_ns) // 1000

    @property
    def key_id(self) -> str:
        assert self.identity is not None
        return self.identity.key_id

    @property
    def at_us(self) -> int:
        """When the request arrived, as its id says: what it is rated at."""
        return time_us_of(self.request_id)

    def open(self, call: Call, route: Route, reserved: Usage, tags: Mapping[str, str]) -> int:
        """Journals the attempt before the provider is called; its sequence, from 1. Raises `ApiError` 503."""
        self.route = route
        return self._open(
            call, route.provider_name, route.price_list, route.model, reserved, tags, route.provider.cost_per_hour
        )

    def open_kept(self, call: Call, tags: Mapping[str, str]) -> int:
        """The same for an answer that was kept here: its provider is called `cache`, and it uses nothing."""
        return self._open(call, CACHE, CACHE, call.model, NOTHING, tags, None)

    def _open(
        self,
        call: Call,
        provider: str,
        price_list: str,
        provider_model: str,
        reserved: Usage,
        tags: Mapping[str, str],
        cost_per_hour: Money | None,
    ) -> int:
        assert self.identity is not None and self.snapshot is not None and not self.closed
        sequence = len(self.opened) + 1
        first = self.opened[0] if self.opened else None
        record = AttemptOpened(
            request_id=self.request_id.bytes,
            sequence=sequence,
            at_us=time.time_ns() // 1000,
            team_id=self.identity.team_id,
            key_id=self.identity.key_id,
            settlement_currency=self.identity.settlement_currency,
            surface=call.surface,
            model=call.model,
            provider=provider,
            price_list=price_list,
            provider_model=provider_model,
            streamed=call.streamed,
            tags=dict(tags),
            pins=first.pins if first is not None else self.snapshot.pins,
            reserved=reserved,
            lost_charge=self.identity.team_lost_charge,
            cost_per_hour=cost_per_hour,
            trace=self.trace,
        )
        try:
            self._services.journal.open(record)
        except JournalError as error:
            logger.error("request %s refused: %s", self.request_id, error)
            raise unavailable(
                "The gateway cannot write its journal, so it takes no requests now; try again shortly.",
                code="journal_unavailable",
                retry_after_s=1.0,
            ) from error
        self.opened.append(record)
        return sequence

    def outcome(
        self,
        sequence: int,
        status: str,
        *,
        began_ns: int,
        usage: Usage | None = None,
        error: str | None = None,
        tier: str = "default",
        estimated: bool = False,
    ) -> None:
        """One attempt is over; called once for each."""
        ended_ns = time.monotonic_ns()
        attempt = AttemptOutcome(
            sequence=sequence,
            status=status,
            usage=usage,
            latency_us=(ended_ns - began_ns) // 1000,
            ttft_us=self.ttft_us,
            error=error,
            service_tier=tier,
            estimated=estimated,
        )
        self.attempts.append(attempt)

    def close(self, status: str, *, answered: int | None, estimated: bool = False, error: str | None = None) -> None:
        """Journals the outcome, once, and rates it. Never raises: what the disk refuses is kept by the journal."""
        if self.closed or not self.opened:
            return
        self.closed = True
        self.status, self.answered, self.estimated = status, answered, estimated
        known = {attempt.sequence for attempt in self.attempts}
        for opened in self.opened:
            if opened.sequence not in known:
                self.attempts.append(AttemptOutcome(opened.sequence, status, None, 0, error=error))
        record = RequestClosed(
            request_id=self.opened[0].request_id,
            at_us=time.time_ns() // 1000,
            status=status,
            answered=answered,
            estimated=estimated,
            attempts=tuple(sorted(self.attempts, key=_sequence) if len(self.attempts) > 1 else self.attempts),
            latency_us=self.elapsed_us(),
            ttft_us=self.ttft_us,
            error=error,
        )
        try:
            self._services.journal.close(record)
        except MeteringError as broken:
            logger.error("request %s: its outcome waits for the journal: %s", self.request_id, broken)
        assert self.snapshot is not None
        try:
            self.rated = rate_request(self.snapshot.books, self.opened, record)
        except Exception:
            logger.exception("request %s could not be rated: its reservation stands for its charge", self.request_id)

    def cost(self) -> str | None:
        """What the team is charged, as `0.00012 CNY`; None when unpriced."""
        if self.rated is None or self.rated.settled is None or self.rated.unpriced is not None:
            return None
        return str(self.rated.settled)

    def charged_usage(self) -> Usage:
        """What the answering attempt used; nothing where none answered."""
        for attempt in self.attempts:
            if attempt.sequence == self.answered and attempt.usage is not None:
                return attempt.usage
        return NOTHING

    def knows(self, sequence: int) -> bool:
        """Whether one attempt has its outcome."""
        return any(each.sequence == sequence for each in self.attempts)

    def correct(self, sequence: int, usage: Usage) -> None:
        """An attempt that was broken off has said what it used. After the books are closed it stays as estimated."""
        if not self.closed:
            self.attempts = [
                replace(each, usage=usage, estimated=False) if each.sequence == sequence else each
                for each in self.attempts
            ]

    def used_by(self, sequence: int) -> int:
        """Tokens that one attempt is known to have used."""
        usage = next((each.usage for each in self.attempts if each.sequence == sequence), None)
        return 0 if usage is None else usage.total

    async def settle(self) -> None:
        """Posts the actual to the limit store, or gives everything back where nothing was opened; once. Never raises."""
        if self.settled or self.lease is None:
            return
        self.settled = True
        admission = self._services.admission
        try:
            if not self.opened:
                await admission.release(self.lease)
            else:
                await admission.settle(self.lease, rated=self.rated, tokens=self.charged_usage().total)
        except ApiError as error:
            logger.error("request %s: its limits could not be settled: %s", self.request_id, error)
        except Exception:
            logger.exception("request %s: its limits could not be settled", self.request_id)


def _sequence(outcome: AttemptOutcome) -> int:
    return outcome.sequence
