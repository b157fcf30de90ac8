"""Anonymous memory that a replica shares with its ranks: it has no name in the file system and goes with them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

import torch

from serving.errors import ConfigError

_SEALS = ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")


def create(size: int) -> int:
    """Return the descriptor of `size` bytes of zeros, which can be neither grown nor shrunk. Raises ConfigError."""
    if not hasattr(os, "memfd_create"):
        raise ConfigError("--tensor-parallel: needs Linux, for memory that only the ranks can see")
    fd = os.memfd_create("intarsia-ranks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        seals = 0
        for name in _SEALS:
            seals |= getattr(fcntl, name)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Shared:
    """A mapping of such memory, in no core dump and in no forked child. It owns the descriptor.

    lock: keep it from swap; `locked` says whether that was allowed
    """

    def __init__(self, fd: int, *, lock: bool = False) -> None:
        self.fd = fd
        self.map = mmap.mmap(fd, os.fstat(fd).st_size)
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        for advice in (mmap.MADV_DONTDUMP, mmap.MADV_DONTFORK):
            self.map.madvise(advice)
        self.locked = False
        if lock:
            whole = ctypes.c_void_p(self.bytes.data_ptr()), ctypes.c_size_t(len(self.bytes))
            self.locked = ctypes.CDLL(None).mlock(*whole) == 0

    def close(self) -> None:
        """Overwrite it with zeros, for every process that has it, and give it back when nothing refers to it."""
        self.bytes.zero_()
        # The mapping has a descriptor of its own, which goes with the last view.
        del self.bytes, self.map
        os.close(self.fd)
