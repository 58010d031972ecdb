"""What our own account may ask of a provider in a minute, over all callers: counted where the callers' limits are.

Where Redis or Valkey holds those, all replicas count together. While the store is away nothing is held up: the provider's own
429 still stands behind this.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from gateway.admission.claims import Claim, Granted, Refused, Scope
from gateway.admission.limits import Limits
from gateway.admission.store import StoreUnavailable

if TYPE_CHECKING:
    from gateway.admission.store import LimitStore
    from gateway.routing.provider import Provider

logger = logging.getLogger(__name__)

LEASE_US: Final = 60_000_000


class Allowances:
    """Takes an attempt's share of its provider's minute, and corrects it when the attempt is over."""

    def __init__(self, store: LimitStore) -> None:
        self._store = store

    async def take(self, provider: Provider, tokens: int) -> Claim | float | None:
        """The share taken (None where nothing is counted), or for how many seconds there is none.

        More tokens than a whole minute has count as all of it: then the request waits for an idle minute.
        """
        settings = provider.settings
        most = settings.tokens_per_minute
        limits = Limits(settings.requests_per_minute, most)
        estimate = tokens if most is None else min(tokens, most)
        claim = Claim(uuid4(), (Scope(f"provider/{provider.name}", limits),), estimate, (), LEASE_US)
        try:
            answer = await self._store.admit(claim)
        except StoreUnavailable as error:
            logger.info("the limits of provider %s are not counted: %s", provider.name, error)
            return None
        if isinstance(answer, Refused):
            return math.inf if answer.retry_after_us is None else max(0.001, answer.retry_after_us / 1e6)
        return claim if isinstance(answer, Granted) else None

    async def give_back(self, claim: Claim, tokens: int | None) -> None:
        """The attempt used `tokens`; None: it reached no provider."""
        try:
            await (self._store.release(claim) if tokens is None else self._store.settle(claim, tokens, {}))
        except StoreUnavailable as error:
            logger.info("the limits of a provider are not corrected: %s", error)
