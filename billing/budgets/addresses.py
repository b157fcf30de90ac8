"""The address that a webhook is posted to: resolved once, checked, and then the only one that is called.

A name that resolves differently a moment later, or whose server redirects, leads nowhere else.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from marketplace.accounts.errors import InvalidInput

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL = 500  # characters
MAX_ADDRESSES = 16  # of one name
# Assigned to protocols and to relays: `is_global` lets parts of them pass.
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv4Network("192.88.99.0/24"))
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")


class AddressRefused(Exception):
    """The host has no address, or one that is not for everybody on the internet."""


def check_url(url: str) -> str:
    """Return the URL if its form is right; raises InvalidInput. Its address is checked at each delivery."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("https", "http") and bool(parts.hostname) and parts.port != 0
        fine = fine and parts.username is None and not parts.fragment
    except ValueError:
        fine = False
    if not fine or not url.isascii() or not url.isprintable() or " " in url or len(url) > MAX_URL:
        raise InvalidInput("must be an https:// address without user name and fragment", field="url")
    return url


def resolve(host: str) -> list[Address]:
    """Return the addresses of a host name; raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found[:MAX_ADDRESSES]]


def checked_addresses(
    url: str, *, networks: Sequence[Network], resolver: Callable[[str], list[Address]] = resolve
) -> list[Address]:
    """Return the addresses at which the URL may be called; raises AddressRefused.

    All of them are public, or in one of `networks`, those that the operator allows besides. Plain http is for these
    networks alone.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    try:
        addresses = resolver(parts.hostname)
    except (OSError, UnicodeError):
        raise AddressRefused("the host cannot be resolved") from None
    if not addresses:
        raise AddressRefused("the host has no address")
    for address in addresses:
        own = any(address in network for network in networks if network.version == address.version)
        if not own and not is_public(address):
            raise AddressRefused("the host's address is not public")
        if not own and parts.scheme != "https":
            raise AddressRefused("the address is not https")
    return addresses


def is_public(address: Address) -> bool:
    """Return whether anybody on the internet reaches the same machine there, whatever the address is wrapped in."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _LOCAL_NAT64:
            return False
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        wrapped = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if wrapped:
            return is_public(wrapped)
    elif any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
