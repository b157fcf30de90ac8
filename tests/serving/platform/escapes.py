"""Ways out of the verifying child, each tried for real: `python -m tests.serving.platform.escapes MODE`.

Reads `Targets` as JSON from stdin and prints one JSON object. MODE: `free` tries every escape without a sandbox, each
in a forked child; `confined` after `confine`; `container` after `confine` in a system that refuses namespaces and
Landlock, as a container's default profile may; `no-seccomp` in one without seccomp.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy  # noqa: F401  as the real child: loaded before the doors close

from serving.platform.confinement import confine
from serving.platform.confinement.system import prctl, syscall

ESCAPED = "escaped"
X86 = os.uname().machine == "x86_64"
_libc = ctypes.CDLL(None, use_errno=True)
MEMORY = 64 << 20


@dataclass(frozen=True)
class Targets:
    """victim: a process of the same user; port and path: where its sockets listen; key: its file; folder: writable."""

    victim: int
    address: int
    port: int
    path: str
    key: str
    folder: str


def _call(x86: int, arm: int, *values: object) -> int:
    return syscall(x86 if X86 else arm, *values)


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _connect(family: int, address: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        caller.connect(address)  # type: ignore[arg-type]


def _listen(t: Targets) -> None:
    socket.create_server(("127.0.0.1", 0)).close()


def _datagram(t: Targets) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"plaintext", ("127.0.0.1", t.port))


def _write(t: Targets) -> None:
    with open(f"{t.folder}/leak", "wb") as file:
        file.write(b"plaintext")


def _memory_file(t: Targets) -> None:
    with open(f"/proc/{t.victim}/mem", "rb", buffering=0) as file:
        os.pread(file.fileno(), 8, t.address)


def _remote_read(t: Targets) -> None:
    into = ctypes.create_string_buffer(8)
    ours = struct.pack("=QQ", ctypes.addressof(into), 8)
    theirs = struct.pack("=QQ", t.address, 8)
    _libc.process_vm_readv.restype = ctypes.c_ssize_t
    arguments = (t.victim, ours, ctypes.c_ulong(1), theirs, ctypes.c_ulong(1), ctypes.c_ulong(0))
    _checked(_libc.process_vm_readv(*arguments))


def _attach(t: Targets) -> None:
    seize = 0x4206
    _libc.ptrace.restype = ctypes.c_long
    _checked(_libc.ptrace(ctypes.c_long(seize), ctypes.c_long(t.victim), None, None))


def _fork(t: Targets) -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _thread(t: Targets) -> None:
    started = threading.Thread(target=int)
    started.start()
    started.join()


def _mount(t: Targets) -> None:
    with contextlib.suppress(OSError):
        _unshare(t)
    _checked(_libc.mount(b"none", t.folder.encode(), b"tmpfs", ctypes.c_ulong(0), None))


def _unshare(t: Targets) -> None:
    user, group = os.getuid(), os.getgid()
    _checked(_libc.unshare(0x10000000 | 0x20000))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _raise_limit(t: Targets) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))


def _executable_memory(t: Targets) -> None:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


def _become_root(t: Targets) -> None:
    os.setresuid(0, 0, 0)


def _io_uring(t: Targets) -> None:
    syscall(425, 4, ctypes.create_string_buffer(120))


def _steal_descriptor(t: Targets) -> None:
    pidfd = syscall(434, t.victim, 0)
    syscall(438, pidfd, 0, 0)


ESCAPES: dict[str, Callable[[Targets], object]] = {
    "connect to the vault": lambda t: _connect(socket.AF_INET, ("127.0.0.1", t.port)),
    "connect to a unix socket": lambda t: _connect(socket.AF_UNIX, t.path),
    "listen on a port": _listen,
    "send a datagram": _datagram,
    "make a pair of sockets": lambda t: [end.close() for end in socket.socketpair()],
    "read the root key": lambda t: Path(t.key).read_bytes(),
    "see whether a file exists": lambda t: os.stat(t.key),
    "list a folder": lambda t: os.listdir(t.folder),
    "write a file": _write,
    "make a folder": lambda t: os.mkdir(f"{t.folder}/made-{os.getpid()}"),
    "make a link": lambda t: os.symlink(t.key, f"{t.folder}/link-{os.getpid()}"),
    "change a file's mode": lambda t: os.chmod(t.key, 0o600),
    "make a file in memory": lambda t: os.close(os.memfd_create("leak")),
    "read the parent's environment": lambda t: Path(f"/proc/{t.victim}/environ").read_bytes(),
    "read the parent's memory through /proc": _memory_file,
    "read the parent's memory by a call": _remote_read,
    "attach a debugger": _attach,
    "signal the parent": lambda t: os.kill(t.victim, signal.SIGCONT),
    "take the parent's descriptor": _steal_descriptor,
    "fork": _fork,
    "start a thread": _thread,
    "make a pipe": lambda t: [os.close(end) for end in os.pipe()],
    "enter namespaces": _unshare,
    "mount": _mount,
    "leave the root folder": lambda t: os.chroot("/"),
    "raise a limit": _raise_limit,
    "become root": _become_root,
    "be dumpable again": lambda t: prctl(4, 1),
    "keep a key in the kernel": lambda t: _call(248, 217, b"user", b"name", b"plaintext", 9, 2**64 - 2),
    "use io_uring": _io_uring,
    "use shared memory": lambda t: _call(29, 194, 0, 4096, 0o1600),
    "load a program into the kernel": lambda t: _call(321, 280, 0, ctypes.create_string_buffer(72), 72),
    "handle page faults": lambda t: os.close(_call(323, 282, 1)),
    "make memory executable": _executable_memory,
    "take more memory": lambda t: mmap.mmap(-1, 4 * MEMORY).close(),
    "execute a program": lambda t: os.execv("/bin/true", ["true"]),
}


def _outcome(escape: Callable[[Targets], object], targets: Targets) -> str:
    try:
        escape(targets)
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ESCAPED


def _outcome_in_a_fork(escape: Callable[[Targets], object], targets: Targets) -> str:
    if (pid := os.fork()) == 0:
        os._exit(0 if _outcome(escape, targets) == ESCAPED else 1)
    return ESCAPED if os.waitpid(pid, 0)[1] == 0 else "refused by the system"


def _refuse(*numbers: int, option: int | None = None) -> None:
    """Be a system that refuses some calls, or one option of prctl, with EPERM."""

    def line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    deny, allow = line(6, 0x00050001), line(6, 0x7FFF0000)
    program = [line(0x20, 0)]
    for number in numbers:
        program += [line(0x15, number, 0, 1), deny]
    if option is not None:
        program += [line(0x15, 157 if X86 else 167, 0, 3), line(0x20, 16), line(0x15, option, 0, 1), deny]
    code = ctypes.create_string_buffer(b"".join([*program, allow]))
    prctl(38, 1)
    prctl(22, 2, struct.pack("=H6xQ", len(program) + 1, ctypes.addressof(code)))


def main(mode: str) -> None:
    targets = Targets(**json.loads(sys.stdin.readline()))
    began_with = {
        "descriptors": [number for number in range(64) if os.path.exists(f"/proc/self/fd/{number}")],
        "environment": dict(os.environ),
    }
    missing: list[str] = []
    if mode == "container":
        _refuse(272 if X86 else 97, 444)
    if mode == "no-seccomp":
        _refuse(option=22)
    if mode == "free":
        outcomes = {name: _outcome_in_a_fork(escape, targets) for name, escape in ESCAPES.items()}
    else:
        missing = confine(memory=MEMORY, cpu_seconds=30)
        outcomes = {name: _outcome(escape, targets) for name, escape in ESCAPES.items()}
    sys.stdout.write(json.dumps({"outcomes": outcomes, "missing": missing, **began_with}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()  # the test looks at this process from outside meanwhile


if __name__ == "__main__":
    main(sys.argv[1])
