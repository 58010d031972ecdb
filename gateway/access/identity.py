"""Who a caller is: everything the door needs to know about a key, without another look-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network

from gateway.admission.limits import Limits

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Identity:
    """One key as of one catalog snapshot. `None` means no restriction, an empty set means nothing is allowed."""

    key_id: str
    team_id: str
    key_name: str
    public_id: str
    settlement_currency: str
    models: frozenset[str] | None
    limits: Limits
    allowed_ips: tuple[Network, ...] | None
    expires_at_us: int | None
    """The earlier of the key's own end and, for a secret that was rotated away, the end of its grace period."""
    tags: Mapping[str, str]
    prepaid: bool
    revoked: bool
    team_lost_charge: str
    model_limits: Mapping[str, Limits] = field(default_factory=dict)
