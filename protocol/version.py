"""The version of the protocol. It grows with every change that an older side would misunderstand."""

from __future__ import annotations

from protocol.errors import VersionMismatch

PROTOCOL_VERSION = 6
# Messages of the first version carried no version at all.
UNVERSIONED = 1


def require_version(theirs: int, *, sender: str, receiver: str) -> None:
    """Raise VersionMismatch, which names both versions, unless `theirs` is this one."""
    if theirs != PROTOCOL_VERSION:
        older = sender if theirs < PROTOCOL_VERSION else receiver
        raise VersionMismatch(
            f"{sender} speaks protocol {theirs}, {receiver} speaks protocol {PROTOCOL_VERSION}: upgrade {older}"
        )
