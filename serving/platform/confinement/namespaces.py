"""Own user, network, mount and IPC namespaces, an empty root folder, and no capability in any of them."""

from __future__ import annotations

import ctypes
import os
import struct

from serving.platform.confinement.system import prctl, syscall, unshare

# linux/sched.h
_NEWNS, _NEWIPC, _NEWUSER, _NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000
_CAPSET = {"x86_64": 126, "aarch64": 91}
# linux/capability.h: _LINUX_CAPABILITY_VERSION_3, two sets of 32 bits
_CAPABILITIES_VERSION = 0x20080522
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_DUMPABLE = 4


def enter_namespaces() -> None:
    """Move this process, which must have one thread, into namespaces of its own, without a network. Raises OSError."""
    unshare(_NEWUSER | _NEWNET | _NEWNS | _NEWIPC)


def enter_empty_root() -> None:
    """Make a folder without files the root and the working folder; needs the namespaces. Raises OSError."""
    # The folder lists this process's descriptors, as text about them: there is nothing else to open, or to go up to.
    os.chdir("/proc/self/fdinfo")
    os.chroot(".")
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up every capability. Raises OSError, also on a processor whose call numbers are not known here."""
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        raise OSError(f"no call numbers for {os.uname().machine}")
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_VERSION, 0))
    syscall(number, header, ctypes.create_string_buffer(24))


def forbid_new_privileges() -> None:
    """Make set-user-id programs ordinary ones, and this process unreadable to others. Raises OSError."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    prctl(_PR_SET_DUMPABLE, 0)
