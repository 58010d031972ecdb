"""Where a webhook may go: to addresses of the public internet, and to those that the configuration names.

A name is resolved once and every address that it has is checked; the connection then goes to one of them, so that a name which
answers differently the next time (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
_SITE_LOCAL = IPv6Network("fec0::/10")


class ForbiddenAddress(Exception):
    """The host is, or resolves to, an address that nothing may be sent to."""


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> Address:
    """An address of `host` that may be connected to. Raises `ForbiddenAddress`, or `OSError` where the name has none."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found]
    for address in addresses:
        if not permitted(address, allowed):
            raise ForbiddenAddress(
                f"{host} is {address}, which is no public address; if it is meant, name its network in webhook.networks"
            )
    return addresses[0]


def permitted(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether it is public, or in one of `allowed`. An IPv4 address inside an IPv6 one is what counts."""
    inner = _inside(address)
    if any(address in network or inner in network for network in allowed):
        return True
    return inner.is_global and not (inner.is_multicast or inner.is_reserved or inner in _SITE_LOCAL)


def _inside(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
