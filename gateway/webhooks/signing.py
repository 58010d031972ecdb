"""The signature of a webhook: who has the secret can tell that the body is ours, and when it was sent.

    x-metergate-signature: t=1790000000,v1=<hex>

`v1` is HMAC-SHA256 of `<t>.<body>` under the secret; `t` is the second at which this try was sent. A receiver computes it
anew over the bytes that it got, compares in constant time, and refuses a `t` that is more than a few minutes off.
"""

from __future__ import annotations

import hmac
from typing import Final

HEADER: Final = "x-metergate-signature"
EVENT_ID: Final = "x-metergate-event-id"
TOLERANCE_S: Final = 300


def sign(secret: str, body: bytes, at_s: int) -> str:
    """The header's value. The secret must not be empty."""
    assert secret
    return f"t={at_s},v1={_digest(secret, body, at_s)}"


def verify(secret: str, body: bytes, header: str, now_s: int, tolerance_s: int = TOLERANCE_S) -> bool:
    """What a receiver does."""
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    at = parts.get("t", "")
    if not secret or not at.isascii() or not at.isdecimal() or abs(now_s - int(at)) > tolerance_s:
        return False
    return hmac.compare_digest(_digest(secret, body, int(at)).encode(), parts.get("v1", "").encode())


def _digest(secret: str, body: bytes, at_s: int) -> str:
    return hmac.new(secret.encode(), b"%d." % at_s + body, "sha256").hexdigest()
