"""How an attempt can fail below HTTP, in the words a caller gets: nothing reached, nothing in time, cut, unreadable."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from gateway import errors
from gateway.errors import ApiError
from gateway.upstream.base import BadAnswer, Failure
from gateway.upstream.errors import ConnectFailed, StaleConnection, TransportError
from gateway.upstream.wire import UpstreamResponse

if TYPE_CHECKING:
    from gateway.routing.routes import Route


def retry_after(response: UpstreamResponse) -> float | None:
    """Seconds that the provider asks to wait: `retry-after-ms`, or `retry-after` in seconds or as a date."""
    try:
        exact = response.header("retry-after-ms")
        if exact is not None:
            return max(0.0, float(exact) / 1000)
        given = response.header("retry-after")
        if given is None:
            return None
        if given.strip().replace(".", "", 1).isdigit():
            return float(given)
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def timed_out(provider: str) -> Failure:
    error = errors.gateway_timeout(f"The provider '{provider}' did not answer in time.")
    return Failure(error, True, True, None, "timeout")


def broken(provider: str, error: TransportError) -> Failure:
    if isinstance(error, ConnectFailed):
        return Failure(
            errors.bad_gateway(f"The provider '{provider}' cannot be reached.", code="upstream_unreachable"),
            True,
            True,
            None,
            "connect failed",
            everyones=True,
        )
    if isinstance(error, StaleConnection):
        return Failure(_cut(provider), True, False, None, "stale connection", stale=True)
    return cut_off(provider)


def cut_off(provider: str) -> Failure:
    return Failure(_cut(provider), True, True, None, "cut")


def _cut(provider: str) -> ApiError:
    return errors.bad_gateway(f"The provider '{provider}' broke off its answer.", code="upstream_cut")


def unreadable(provider: str, reason: str) -> Failure:
    error = errors.bad_gateway(
        f"The provider '{provider}' sent an answer that cannot be read.", code="upstream_unreadable"
    )
    return Failure(error, True, True, None, reason)


def bad_answer(route: Route, bad: BadAnswer) -> Failure:
    if bad.error is not None:
        return route.provider.adapter.in_band_failure(route.provider, bad.error)
    return unreadable(route.provider_name, str(bad))
