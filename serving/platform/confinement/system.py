"""Calls of the kernel that Python has no function for, as ctypes."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def prctl(option: int, *values: object) -> None:
    """Call prctl(2) with up to four more arguments. Raises OSError."""
    _check(_libc.prctl(option, *_padded(values, 4)))


def unshare(flags: int) -> None:
    """Call unshare(2). Raises OSError."""
    _check(_libc.unshare(flags))


def syscall(number: int, *values: object) -> int:
    """Make one system call with up to five arguments and return its result. Raises OSError."""
    return _check(_libc.syscall(ctypes.c_long(number), *_padded(values, 5)))


def _padded(values: tuple[object, ...], count: int) -> list[object]:
    # Variadic C functions read whole registers: a plain Python int would set 32 bits of them.
    wide = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    return wide + [ctypes.c_ulong(0)] * (count - len(wide))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
