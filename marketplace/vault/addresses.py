"""The network address of a replica: resolved once, checked against the allowed networks, and kept.

The gateway calls the checked address, not the name, so that a name that resolves differently later leads nowhere else.
With https the name stays: the certificate has to prove it on every connection.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from urllib.parse import SplitResult, urlsplit

from marketplace.vault.errors import BadRequest, NotEnrolled

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_ADDRESSES = 16  # of one name


def resolve(host: str) -> list[Address]:
    """Return the addresses of a host name; raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found[:MAX_ADDRESSES]]


def checked_origin(
    url: str, *, host: str, networks: Sequence[Network], resolver: Callable[[str], list[Address]] = resolve
) -> str:
    """Return the origin at which the platform may call the replica.

    `host` is the one that staff named, `networks` are those in which replicas may be. Raises BadRequest for a `url`
    that is no plain origin, NotEnrolled for another host or an address outside the networks.
    """
    parts, port = _plain_origin(url)
    assert parts.hostname is not None
    if parts.hostname != host.lower():
        raise NotEnrolled(f"this replica may register at the host {host}, not {parts.hostname}")
    try:
        addresses = resolver(parts.hostname)
    except OSError:
        raise NotEnrolled(f"the host {host} cannot be resolved here") from None
    if not addresses or any(not _allowed(address, networks) for address in addresses):
        raise NotEnrolled(f"the host {host} is outside the networks of replicas (REPLICA_NETWORKS)")
    if parts.scheme == "https":
        return f"https://{_bracketed(parts.hostname)}:{port}"
    return f"http://{_bracketed(str(addresses[0]))}:{port}"


def _plain_origin(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        callable_host = parts.scheme in {"http", "https"} and bool(parts.hostname)
        beside_it = parts.username is not None or parts.path not in {"", "/"} or bool(parts.query or parts.fragment)
    except ValueError:
        callable_host, beside_it, port = False, False, 0
    if not callable_host or beside_it:
        raise BadRequest("url must be http://host:port or https://host:port, without a path")
    return parts, port


def _allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether a replica may be there. Metadata services live on link-local addresses: those never qualify."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return any(address in network for network in networks if network.version == address.version)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
