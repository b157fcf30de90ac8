"""Ray on one machine, out of reach of all others.

With the node on loopback (`environment.LOOPBACK_ENVIRONMENT`) every port of Ray binds there, with one exception
in 2.60: the gRPC server in which each Serve replica takes calls of other deployments listens on all interfaces, behind
the token. Nothing calls ours.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


def keep_on_loopback(node_address: str) -> None:
    """Bind this replica's server for other deployments to loopback if the node is there; else change nothing.

    It reaches into a private module, of the exact minor version that `pyproject.toml` names. `open_listeners` would
    show, and `make fleet` refuse, a version in which this has no effect.
    """
    if not ipaddress.ip_address(node_address).is_loopback:
        return
    from ray.serve._private import replica

    bind = replica.add_port_to_grpc_server

    def bind_to_loopback(server: Any, address: str) -> int:
        return int(bind(server, address.replace("[::]", "127.0.0.1")))

    replica.add_port_to_grpc_server = bind_to_loopback


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP port on which a process listens."""

    pid: int
    address: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine reaches it."""
        found = ipaddress.ip_address(self.address)
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return (mapped or found).is_loopback


def listeners(pids: Iterable[int]) -> list[Listener]:
    """Return what these processes listen on (Linux). A process that has ended, or hides its files, has nothing."""
    sockets = _listening_sockets()
    found = []
    for pid in pids:
        found += [Listener(pid, *sockets[inode]) for inode in _inodes_of(pid) & sockets.keys()]
    return sorted(found, key=lambda one: (one.pid, one.port))


def _inodes_of(pid: int) -> set[str]:
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed since
                target = os.readlink(f"/proc/{pid}/fd/{entry}")
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


def _listening_sockets() -> dict[str, tuple[str, int]]:
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                address, _, port = fields[1].partition(":")
                sockets[fields[9]] = (_address(address), int(port, 16))
    return sockets


def _address(text: str) -> str:
    """Read an address as the kernel writes it: words of 32 bits, each in the order of this machine (little-endian)."""
    raw = bytes.fromhex(text)
    words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return str(ipaddress.ip_address(words))
