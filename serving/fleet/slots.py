"""Slots of a node: lasting names for replicas that come and go, each with its journal and its identity.

A replica takes the first slot of its node that it can lock. The lock goes with the process, however that ends; the next
process finds the slot free, takes its name, and finishes the journal that was left there. Nobody coordinates.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from protocol.names import FleetName, is_node_name, parse_fleet_name
from serving.errors import ConfigError

MAX_SLOTS = 64  # replicas of one pool on one node
_CLOSED, _OPEN = b"closed\n", b"open\n"


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that this process holds until `release`, or until it ends."""

    name: FleetName
    descriptor: int

    def release(self, *, settled: bool) -> None:
        """Give the slot up. `settled`: its journal owes nothing, so that no successor is needed to finish it."""
        if settled:
            os.pwrite(self.descriptor, _CLOSED, 0)
            os.ftruncate(self.descriptor, len(_CLOSED))
        os.close(self.descriptor)

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release(settled=False)


def take_slot(state_dir: Path, pool: str, *, most: int = MAX_SLOTS) -> Slot:
    """Take a slot of `pool` on this node: first one whose last holder died, then the lowest that is free.

    Raises ConfigError when all are taken or the folder cannot be used.
    """
    folder = state_dir / "slots"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        node = node_name(state_dir)
        names = [FleetName(pool, node, number) for number in range(most)]
        for name in sorted(names, key=lambda name: (not _left_open(folder, name), name.slot)):
            descriptor = _lock(folder / str(name))
            if descriptor is not None:
                os.pwrite(descriptor, _OPEN, 0)
                os.ftruncate(descriptor, len(_OPEN))
                return Slot(name, descriptor)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; the state folder must be a disk of this node alone") from None
    raise ConfigError(f"all {most} slots of the pool {pool} on this node are taken")


def held_slots(state_dir: Path) -> list[FleetName]:
    """Return the slots of this node that processes hold now."""
    held = []
    for path in sorted((state_dir / "slots").glob("*")):
        descriptor = _lock(path)
        if descriptor is None:
            held.append(parse_fleet_name(path.name))
        else:
            os.close(descriptor)
    return held


def node_name(state_dir: Path) -> str:
    """Return the lasting name of the node, which lies beside the journals: it goes wherever they go.

    Made at first use of the host's name and a random end, as hosts of containers change their names and clones share
    them. Raises OSError.
    """
    path = state_dir / "node"
    if not path.exists():
        host = re.sub(r"[^a-z0-9]", "", socket.gethostname().lower())[:20]
        mine = path.with_name(f"node.{secrets.token_hex(4)}")
        mine.write_text(f"{host}{secrets.token_hex(4)}\n")
        try:
            os.link(mine, path)  # of several replicas that start at once, the first one names the node
        except FileExistsError:
            pass
        finally:
            mine.unlink()
    name = path.read_text().strip()
    if not is_node_name(name):
        raise ConfigError(f"{path}: a node's name has lower-case letters and digits, at most 40")
    return name


def _left_open(folder: Path, name: FleetName) -> bool:
    try:
        return (folder / str(name)).read_bytes() == _OPEN
    except FileNotFoundError:
        return False


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
