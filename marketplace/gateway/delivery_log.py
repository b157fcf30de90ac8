"""The record of deliveries in progress, in memory that outlives the process: one mapped file per gateway process.

A kill -9 leaves the pages of the file as they were, so another process on the machine can read how many tokens each
client had been handed, and which charged answers were never sent. The flock on a file says that its owner is alive.
Nothing is flushed to disk: after a crash of the machine the log may be lost, and unproven deliveries are free.

A file is a row of slots of four 64-bit words: the prediction's id in two, attempt and state in one, tokens. One store
writes a word, the state last, so a kill between two stores leaves a slot that says at most what happened.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SLOTS = 16_384  # predictions in flight of one process
SUFFIX = ".deliveries"
_SLOT_WORDS = 4
_WORD_BYTES = 8
_LOW = 2**64 - 1


class DeliveryState(IntEnum):
    """The state of a slot; of a file's zeros, FREE."""

    FREE = 0
    RUNNING = 1  # `tokens` of the answer were handed to the client's connection
    UNSENT = 2  # the whole answer is about to be charged, or was, and is not handed over yet


@dataclass(frozen=True, slots=True)
class Delivery:
    """One slot in use. `tokens` are completion tokens, over all choices."""

    prediction_id: uuid.UUID
    attempt: int
    state: DeliveryState
    tokens: int


class LogFull(Exception):
    """Every slot is in use."""


class DeliveryLog:
    """The file of this process. Used by one thread."""

    def __init__(self, folder: Path, owner: uuid.UUID, *, slots: int = SLOTS) -> None:
        """Create the file and lock it for the life of this object. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{owner}{SUFFIX}"
        draft = folder / f"{owner}.new"  # nobody reads it: a file under its final name is always locked by its owner
        self._file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, slots * _SLOT_WORDS * _WORD_BYTES)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        draft.rename(self.path)
        self._map = mmap.mmap(self._file, 0)
        self._words = memoryview(self._map).cast("Q")
        self._unused = list(range(slots))

    def open(self, prediction_id: uuid.UUID) -> Slot:
        """Return a slot of a prediction whose first attempt begins. Raises LogFull."""
        if not self._unused:
            raise LogFull
        return Slot(self._words, self._unused, self._unused.pop(), prediction_id)

    def close(self) -> None:
        """Unlock the file, and remove it if no slot is in use: another process takes care of the others."""
        in_use = len(self._unused) * _SLOT_WORDS < len(self._words)
        self._words.release()
        self._map.close()
        if not in_use:
            self.path.unlink(missing_ok=True)
        os.close(self._file)


class Slot:
    """The place of one prediction in the log."""

    def __init__(self, words: memoryview[int], unused: list[int], index: int, prediction_id: uuid.UUID) -> None:
        """Take the place and note that nothing of the first attempt was handed over."""
        self._words, self._unused, self._index = words, unused, index
        self._at = index * _SLOT_WORDS
        words[self._at], words[self._at + 1] = prediction_id.int >> 64, prediction_id.int & _LOW
        self.running(1)

    def running(self, attempt: int, tokens: int = 0) -> None:
        """Note that `tokens` of this attempt were handed over. They never become fewer within one attempt."""
        self._words[self._at + 3] = tokens
        self._words[self._at + 2] = attempt << 8 | DeliveryState.RUNNING

    def unsent(self, attempt: int) -> None:
        """Note that a whole answer is about to be charged before it is sent."""
        self._words[self._at + 2] = attempt << 8 | DeliveryState.UNSENT

    def free(self) -> None:
        """Give the place back: the prediction's outcome is in the books, or nothing was charged. Idempotent."""
        if self._at >= 0:
            self._words[self._at + 2] = DeliveryState.FREE
            self._unused.append(self._index)
            self._at = -1


class Orphan:
    """The file of a process that has ended, locked by this one."""

    def __init__(self, path: Path, file: int) -> None:
        """Hold the locked file."""
        self.path, self._file = path, file

    def deliveries(self) -> list[Delivery]:
        """Return what was in progress when the process ended."""
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        words = memoryview(content[: len(content) // (_SLOT_WORDS * _WORD_BYTES) * _SLOT_WORDS * _WORD_BYTES]).cast("Q")
        found = []
        for at in range(0, len(words), _SLOT_WORDS):
            attempt, state = words[at + 2] >> 8, words[at + 2] & 0xFF
            if state in (DeliveryState.RUNNING, DeliveryState.UNSENT):
                prediction_id = uuid.UUID(int=words[at] << 64 | words[at + 1])
                found.append(Delivery(prediction_id, attempt, DeliveryState(state), words[at + 3]))
        return found

    def remove(self) -> None:
        """Remove the file: each of its deliveries is in the books."""
        self.path.unlink(missing_ok=True)


def orphans(folder: Path) -> Iterator[Orphan]:
    """Yield the files whose processes have ended; each is locked while it is the current one."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Orphan(path, file)
        except BlockingIOError:
            continue  # its owner is alive, or another process is at it
        finally:
            os.close(file)
