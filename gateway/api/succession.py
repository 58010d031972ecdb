"""What is tried after a failure: another key of ours, another route, another model, the same route after a pause, or nothing."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from gateway.routing.retries import MOST_ATTEMPTS, pause_s

if TYPE_CHECKING:
    from gateway.api.account import Account
    from gateway.routing.routes import Plan, Route
    from gateway.services import Services
    from gateway.upstream.base import Failure

logger = logging.getLogger(__name__)

UNMAPPED: Final = "the provider has no counterpart of what was asked"
AT_LIMIT: Final = "our account's minute at the provider is used up"
OVERFLOW: Final = "context_length_exceeded"


class Succession:
    """`route` is what to try now; `after` moves on, or raises the failure's `ApiError`.

    What reached no provider (`UNMAPPED`, `AT_LIMIT`), and a prompt too long for a model, take nothing from the retry budget.
    """

    __slots__ = ("_account", "_again", "_may_retry", "_place", "_plan", "_services")

    def __init__(self, services: Services, plan: Plan, account: Account, *, may_retry: bool) -> None:
        self._services = services
        self._plan = plan
        self._account = account
        self._may_retry = may_retry
        self._place = 0
        self._again = 0

    @property
    def route(self) -> Route:
        return self._plan.routes[self._place]

    async def after(self, failure: Failure) -> float:
        """How many seconds to wait before `route` is tried. Raises `ApiError`."""
        unsent = failure.reason == UNMAPPED or failure.reason == AT_LIMIT
        if not unsent:
            logger.warning(
                "request %s: attempt at %s failed: %s",
                self._account.request_id,
                self.route.provider_name,
                failure.reason,
            )
        if len(self._account.opened) >= MOST_ATTEMPTS:
            raise failure.error
        if failure.error.code == OVERFLOW and await self._fall_back(beyond=self.route.of.context_window or 0):
            return 0.0
        if not failure.retryable and failure.reason != UNMAPPED:
            raise failure.error
        if failure.stale and self._may_retry:  # no more often than connections rested, so it draws on no budget
            return 0.0
        if failure.turned and self._may_retry and self._may_try():
            return 0.0
        if (self._following() or await self._fall_back()) and (unsent or self._may_try()):
            self._place = self._following() or self._place
            return 0.0
        pause = None if failure.reason == UNMAPPED else self._pause(failure)
        if pause is None or not self._may_try():
            raise failure.error
        self._again += 1
        return pause

    def spare(self) -> Route | None:
        """Another route of the plan for an attempt beside the one that runs, where the retry budget has room for it."""
        place = self._following()
        if not place or not self._may_retry or len(self._account.opened) >= MOST_ATTEMPTS or not self._may_try():
            return None
        return self._plan.routes[place]

    def _may_try(self) -> bool:
        return self._plan.retries.take(self._account.key_id)

    def _following(self) -> int:
        """The next route of the plan that is worth a call; 0 when there is none."""
        now_s, key, routes = time.monotonic(), self._account.key_id, self._plan.routes
        return next((i for i in range(self._place + 1, len(routes)) if routes[i].usable(now_s, key)), 0)

    async def _fall_back(self, *, beyond: int | None = None) -> bool:
        """Puts another model's routes, as far as the reservation can cover them, next in the plan."""
        plan, lease = self._plan, self._account.lease
        assert lease is not None
        while plan.fallbacks:
            end = len(plan.routes)
            routes = self._services.router.fall_back(plan, time.monotonic(), beyond=beyond)
            plan.routes[end:] = [route for route in routes if await self._services.admission.amend(lease, route)]
            if len(plan.routes) > end:
                if beyond is not None:
                    self._place = end
                return True
            if not routes:
                break
        return False

    def _pause(self, failure: Failure) -> float | None:
        """How long to wait before the same route is tried again; None when it is not worth it."""
        if not self._may_retry:
            return None
        pause = pause_s(self._again + 1, failure.retry_after_s, self._services.router.jitter)
        route = self.route
        if (
            pause is None
            or not route.provider.available
            or route.breaker.opens_in_s(time.monotonic(), self._account.key_id) > pause
        ):
            return None
        return pause
