from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from gateway.access.client_address import client_address, parse_address

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["192.0.2.66", "198.51.100.1, 10.9.9.9"], "198.51.100.1"),
        ("10.0.0.1", ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("fd00::1", ["[2001:db8::7]:443"], "2001:db8::7"),
        ("::ffff:10.0.0.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1, unknown"], None),
        ("10.0.0.1", [""], None),
        (None, ["198.51.100.1"], None),
        ("10.0.0.1", ["198.51.100.1\xff"], None),
    ],
)
def test_rule_32c_the_caller_is_the_rightmost_untrusted_hop(
    peer: str | None, forwarded: list[str], caller: str | None
) -> None:
    headers = [text.encode("latin-1") for text in forwarded]
    assert client_address(peer, headers, PROXIES) == (None if caller is None else ip_address(caller))


def test_rule_32c_without_trusted_proxies_the_header_is_ignored() -> None:
    assert client_address("10.0.0.1", [b"198.51.100.1"], ()) == ip_address("10.0.0.1")


def test_a_zone_is_no_part_of_an_address() -> None:
    assert parse_address("fe80::1%eth0") == ip_address("fe80::1")
