"""seccomp: a list of the system calls that checking an adapter needs. Every other call fails with EPERM."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from serving.platform.confinement.system import prctl

# Name of each allowed call, with its number on x86_64 and on aarch64.
_ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "getpid": (39, 172),
    "exit": (60, 93),
    "sigaltstack": (131, 132),
    "mlock": (149, 228),
    "munlock": (150, 229),
    "gettid": (186, 178),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "preadv": (295, 69),
    "getrandom": (318, 278),
    "mlock2": (325, 284),
    "preadv2": (327, 286),
}
# Allowed unless the memory is to be executable.
_ALLOWED_FOR_DATA = {"mmap": (9, 222), "mprotect": (10, 226)}
_PROT_EXEC = 4
# linux/audit.h
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
# linux/seccomp.h
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
# linux/bpf_common.h: load a word of seccomp_data, jump if equal, jump if any bit is set, return.
_LOAD, _IF_EQUAL, _IF_ANY, _RETURN = 0x20, 0x15, 0x45, 0x06
# Offsets in seccomp_data: the call's number, the processor, the low half of the third argument (little-endian).
_NUMBER, _ARCHITECTURE, _THIRD = 0, 4, 32


def forbid_other_calls() -> None:
    """Install the filter, for good. Needs no-new-privileges. Raises OSError, also on a processor not known here."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(f"no call numbers for {machine}")
    program = _program(*_ARCHITECTURES[machine])
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, padding, their address
    described = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(code))
    prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.create_string_buffer(described, len(described)))


def _program(column: int, architecture: int) -> bytes:
    lines = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_IF_EQUAL, architecture, 1, 0),
        _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER),
    ]
    for numbers in _ALLOWED.values():
        lines += [_line(_IF_EQUAL, numbers[column], 0, 1), _line(_RETURN, _ALLOW)]
    for numbers in _ALLOWED_FOR_DATA.values():
        lines += [
            _line(_IF_EQUAL, numbers[column], 0, 4),
            _line(_LOAD, _THIRD),
            _line(_IF_ANY, _PROT_EXEC, 1, 0),
            _line(_RETURN, _ALLOW),
            _line(_RETURN, _ERRNO | errno.EPERM),
        ]
    return b"".join([*lines, _line(_RETURN, _ERRNO | errno.EPERM)])


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction: jumps count the instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
