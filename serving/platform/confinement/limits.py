"""Limits that every Linux has: memory, processor time, and none of files, processes and cores."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

# Limits that become 0. An open descriptor stays usable: it is new ones that RLIMIT_NOFILE forbids, sockets among them.
_NONE = (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE)
_NOBODY = 65534


def limit(*, memory: int, cpu_seconds: int) -> None:
    """Allow `memory` bytes of addresses and `cpu_seconds` from the process's start; nothing new is opened.

    Raises OSError or ValueError.
    """
    for kind in _NONE:
        resource.setrlimit(kind, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def mapped_bytes() -> int:
    """Return the bytes of addresses that this process has mapped. Raises OSError."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def allow_locking(size: int) -> None:
    """Let this process lock `size` bytes in RAM, where it may raise the limit or the limit allows that already."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and hard < size:
        hard = size
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def become_nobody() -> None:
    """Exchange root for an account that owns nothing; an ordinary user stays. Raises OSError."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
