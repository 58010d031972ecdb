"""Where a request of ours may go (a webhook, a file of rates): to the public internet, and to what the configuration names.

A name is resolved once and every address that it has is checked; the connection then goes to one of them, so that a name which
answers differently the next time (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpx

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

NO_HEADERS: Final[Mapping[str, str]] = {}
_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = tuple(
    map(
        ip_network,
        (
            "192.0.0.0/24",  # protocol assignments (RFC 6890); a cloud's metadata at .192
            "168.63.129.16/32",  # a cloud's agent and name server for its guests
            "192.88.99.0/24",  # 6to4 relays, deprecated (RFC 7526)
            "64:ff9b:1::/48",  # NAT64 within a site (RFC 8215)
            "3fff::/20",  # documentation (RFC 9637)
            "5f00::/16",  # segment routing (RFC 9602)
            "fec0::/10",  # site-local, deprecated (RFC 3879)
        ),
    )
)
"""What `ipaddress` takes for global, in one version of Python or another, and is no address of somebody on the internet."""


class ForbiddenAddress(Exception):
    """The host is, or resolves to, an address that nothing may be sent to."""


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> Address:
    """An address of `host` that may be connected to: of IPv4 where it has one, as not every host reaches IPv6.

    Raises `ForbiddenAddress`, or `OSError` where the name has none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found]
    for address in addresses:
        if not permitted(address, allowed):
            raise ForbiddenAddress(
                f"{host} is {address}, which is no public address; if it is meant, name its network in `networks` beside its url"
            )
    return min(addresses, key=lambda address: address.version)


async def pinned(
    client: httpx.AsyncClient,
    method: str,
    url: httpx.URL,
    allowed: Sequence[Network],
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    content: bytes | None = None,
) -> httpx.Request:
    """A request to an address of `url`'s host that was checked, under the host's own name. Raises as `resolve`."""
    port = url.port or (443 if url.scheme == "https" else 80)
    address = await resolve(url.host, port, allowed)
    return client.build_request(
        method,
        url.copy_with(host=str(address)),
        headers={"host": url.netloc.decode(), "user-agent": "metergate", **headers},
        content=content,
        extensions={"sni_hostname": url.host},
    )


def permitted(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether it is public, or in one of `allowed`. An IPv4 address inside an IPv6 one is what counts."""
    inner = _inside(address)
    if any(address in network or inner in network for network in allowed):
        return True
    return inner.is_global and not (
        inner.is_multicast or inner.is_reserved or any(inner in each for each in _NOT_PUBLIC)
    )


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
