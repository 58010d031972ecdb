"""Which address a request really comes from: the peer's, or what trusted proxies say of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from gateway.access.identity import Network

Address = IPv4Address | IPv6Address


def client_address(peer: str | None, forwarded: Iterable[bytes], trusted: Sequence[Network]) -> Address | None:
    """The rightmost hop that is no trusted proxy; None when it cannot be told (a Unix socket, an unreadable hop).

    `forwarded` are the `x-forwarded-for` headers in order. Unless the peer itself is trusted they are ignored, because
    anybody can write them. When every hop is a trusted proxy, the farthest one is the caller.
    """
    address = parse_address(peer or "")
    if address is None or not is_inside(address, trusted):
        return address
    hops = [hop for header in forwarded for hop in header.decode("latin-1").split(",")]
    for hop in reversed(hops):
        address = parse_address(hop.strip())
        if address is None or not is_inside(address, trusted):
            return address
    return address


def is_inside(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def parse_address(text: str) -> Address | None:
    """An address with or without port, brackets or zone; an IPv4 address inside IPv6 is the IPv4 address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
