"""What keeps the dashboard's pages to themselves: headers, forms that only our own pages can send, ways back that stay inside."""

from __future__ import annotations

import hmac
import re
from typing import Any, Final
from urllib.parse import urlsplit

from litestar import Request

from gateway import errors

HOME: Final = "/dashboard"
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_INSIDE: Final = re.compile(r"/dashboard(?:/[A-Za-z0-9_~.\-]+)*/?(?:\?[A-Za-z0-9_~.\-%&=+:/,]*)?")


def way_back(text: str | None) -> str:
    """A path below /dashboard, as it was given; anything else is the first page. No scheme, no host, no backslash."""
    if text and len(text) <= 2000 and _INSIDE.fullmatch(text) and "/.." not in text:
        return text
    return HOME


def check_origin(request: Request[Any, Any, Any]) -> None:
    """Raises `ApiError` 403 for a form that another site sent. Browsers say where it comes from; scripts say nothing."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise errors.forbidden("This form was sent from another site.", code="cross_site")


def check_csrf(expected: str, given: object) -> None:
    """Raises `ApiError` 403 where a form does not carry its session's token."""
    if not isinstance(given, str) or not hmac.compare_digest(expected.encode(), given.encode()):
        raise errors.forbidden("This form has expired. Load the page again.", code="csrf")
