"""A request waits its turn where our own account at a provider is limited, for a short while; then it goes elsewhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gateway import errors
from gateway.api.succession import AT_LIMIT
from gateway.upstream.base import Failure

if TYPE_CHECKING:
    from gateway.admission.claims import Claim
    from gateway.api.caller import Caller
    from gateway.routing.allowances import Allowances
    from gateway.routing.provider import Provider


async def take_turn(allowances: Allowances, caller: Caller, provider: Provider, tokens: int) -> Claim | Failure | None:
    """The attempt's share of the provider's minute (None: nothing is counted now), or the failure of having none in time.

    Raises `Interrupted` when the caller leaves meanwhile.
    """
    left_s = provider.settings.queue_s
    while True:
        taken = await allowances.take(provider, tokens)
        if not isinstance(taken, float):
            return taken
        if taken > left_s:
            wait_s = min(taken, 60.0)
            error = errors.rate_limited(
                f"The gateway's own limit at the provider '{provider.name}' is reached; try again later.",
                retry_after_s=wait_s,
                code="upstream_rate_limited",
            )
            return Failure(error, True, False, math.ceil(wait_s * 1000) / 1000, AT_LIMIT)
        left_s -= taken
        await caller.pause(taken)
