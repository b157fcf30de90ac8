"""The order in which a process gives up its rights, and the list of layers that the system did not grant."""

from __future__ import annotations

import os
from collections.abc import Callable

from serving.platform.confinement.landlock import forbid_files
from serving.platform.confinement.limits import allow_locking, become_nobody, limit, mapped_bytes
from serving.platform.confinement.namespaces import (
    drop_capabilities,
    enter_empty_root,
    enter_namespaces,
    forbid_new_privileges,
)
from serving.platform.confinement.seccomp import forbid_other_calls

# Each layer needs rights that a later one takes away. Namespaces before the limit of open files: they use descriptors.
_BEFORE_LIMITS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("an account of its own", become_nobody),
    ("namespaces", enter_namespaces),
    ("an empty root folder", enter_empty_root),
    ("no capabilities", drop_capabilities),
    ("no new privileges", forbid_new_privileges),
    ("Landlock", forbid_files),
)


def confine(*, memory: int, cpu_seconds: int) -> list[str]:
    """Give up, for good, all rights that checking an adapter does not need; returns the layers that are missing.

    memory: bytes beyond what is mapped now
    cpu_seconds: of processor time since the process began

    The caller has one thread, and has imported and opened all that it will need. Afterwards it can read and write its
    open descriptors, use memory, and end. Each missing layer is named with the system's reason. Raises OSError if even
    the limits cannot be set: the process must not go on then.
    """
    mapped = mapped_bytes()  # while there is a /proc to read it from
    allow_locking(memory)
    missing = [name for name in (_attempt(name, layer) for name, layer in _BEFORE_LIMITS) if name]
    limit(memory=mapped + memory, cpu_seconds=cpu_seconds)
    last = _attempt("seccomp", forbid_other_calls)
    return [*missing, last] if last else missing


def _attempt(name: str, layer: Callable[[], None]) -> str | None:
    """Return None when the layer is in place, else its name and the reason."""
    try:
        layer()
    except OSError as error:
        return f"{name} ({os.strerror(error.errno) if error.errno else error})"
    return None
