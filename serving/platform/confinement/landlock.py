"""Landlock: this process can open, make, move and connect nothing from now on (the kernel's userspace-api/landlock)."""

from __future__ import annotations

import ctypes
import os
import struct

from serving.platform.confinement.system import syscall

# Numbers that all processors share.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_GET_VERSION = 1
# Rights on files that each version of the interface knows: 13 at first, then to link elsewhere, truncate, use ioctl.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_BIND_TCP_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def landlock_version() -> int:
    """Return the version of the kernel's interface. Raises OSError where there is none."""
    return syscall(_CREATE_RULESET, 0, 0, _GET_VERSION)


def forbid_files() -> None:
    """Take away every right that this kernel's version handles. Needs no-new-privileges. Raises OSError."""
    version = landlock_version()
    files = (1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1
    network = _BIND_TCP_AND_CONNECT_TCP if version >= 4 else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0
    attributes = struct.pack("=QQQ", files, network, scoped)
    ruleset = syscall(_CREATE_RULESET, ctypes.create_string_buffer(attributes, len(attributes)), len(attributes), 0)
    try:
        syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
