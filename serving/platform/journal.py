"""The usage journal: the usage of each prediction so far and its receipt at the end, surviving a crash at any byte.

One thread writes. Receipts wait for their fsync, and all that arrive during one fsync share the next (group commit).
Running predictions are checkpointed together, in one line, every 16 tokens or quarter of a second. A journal that
cannot be written (disk full) accepts no new predictions, keeps unwritten receipts in memory and retries every second.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Literal
from uuid import UUID

from protocol.journal import Checkpoint, Dropped, Final, Progress, encode_line
from serving.platform import journal_file as disk
from serving.platform.errors import JournalUnavailable

log = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 0.25
CHECKPOINT_TOKENS = 16
RETRY_SECONDS = 1.0
SEGMENT_BYTES = 16 << 20
KEEP_SEGMENTS = 16  # 256 MiB: about 300,000 receipts, then the oldest are forgotten

Key = tuple[str, int]  # a prediction and its attempt: a later boot may run another attempt of the same prediction


class UsageJournal:
    """One folder, one writer. Every method may be called from any thread."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, keep_segments: int = KEEP_SEGMENTS) -> None:
        """Lock the folder, read its records and start writing after them.

        Raises JournalUnavailable if another process holds the folder or it cannot be read or written.
        """
        self._folder, self._segment_bytes, self._keep = folder, segment_bytes, keep_segments
        self._finals: dict[bytes, tuple[int, int]] = {}  # attempt → (segment, offset)
        self._running: dict[Key, Progress] = {}
        self._interrupted: dict[Key, Progress] = {}
        self._owed: dict[Key, tuple[str, Future[None]]] = {}  # receipts that are not durable yet
        self._dropped: list[Key] = []
        self._dirty: set[Key] = set()
        self._written: dict[Key, int] = {}  # tokens at the last checkpoint
        self._accepting, self._closing, self._urgent = True, False, False
        self._committed_at = time.monotonic()
        self._changed = threading.Condition()
        self._lock_file = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock()
            self._recover()
        except OSError as error:
            raise JournalUnavailable(f"usage journal {folder}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="usage-journal", daemon=True)
        self._thread.start()

    @property
    def accepting(self) -> bool:
        """Return whether new predictions may be accepted: false while the disk refuses writes."""
        return self._accepting and not self._closing

    def lag(self) -> float:
        """Return the seconds since all records were last on the disk; 0 while no record waits."""
        waits = self._owed or self._dirty or self._dropped
        return time.monotonic() - self._committed_at if waits else 0.0

    def settled(self) -> bool:
        """Return whether every attempt that it knows of has its receipt on the disk."""
        with self._changed:
            return self._accepting and not (self._running or self._interrupted or self._owed or self._dropped)

    def interrupted(self) -> list[Progress]:
        """Return the predictions that an earlier process left unfinished; each needs a receipt through `finish`."""
        with self._changed:
            return list(self._interrupted.values())

    def progress(self, progress: Progress) -> None:
        """Note an attempt's progress, which reaches the disk with the next checkpoint."""
        key = (progress.jti, progress.attempt)
        with self._changed:
            if key in self._owed:
                return
            self._running[key] = progress
            self._dirty.add(key)
            if progress.completion_tokens - self._written.get(key, 0) >= CHECKPOINT_TOKENS:
                self._urgent = True
                self._changed.notify()

    def finish(self, jti: str, attempt: int, receipt: str) -> Future[None]:
        """Record the receipt; the future resolves when the receipt is on the disk.

        The first receipt of an attempt stands: later calls change nothing.
        """
        key = (jti, attempt)
        with self._changed:
            if key in self._owed:
                return self._owed[key][1]
            done: Future[None] = Future()
            if _packed(key) in self._finals:
                done.set_result(None)
                return done
            self._owed[key] = (receipt, done)
            self._urgent = True
            self._changed.notify()
            return done

    def drop(self, jti: str, attempt: int) -> None:
        """Forget an attempt that was refused before its first token."""
        key = (jti, attempt)
        with self._changed:
            if self._running.pop(key, None) is not None:
                self._dropped.append(key)
                self._dirty.discard(key)

    def lookup(self, jti: str, attempt: int) -> tuple[Literal["unknown", "running", "final"], str | None]:
        """Return ("final", receipt), ("running", None) or ("unknown", None)."""
        key = (jti, attempt)
        with self._changed:
            if key in self._owed or key in self._running or key in self._interrupted:
                return "running", None
            place = self._finals.get(_packed(key))
        if place is None:
            return "unknown", None
        record = disk.read_at(disk.segment_path(self._folder, place[0]), place[1])
        if not isinstance(record, Final) or (record.jti, record.attempt) != key:
            log.error("usage journal: the receipt of %s, attempt %d, cannot be read back", jti, attempt)
            return "unknown", None
        return "final", record.receipt

    def close(self) -> None:
        """Write the remaining records and stop. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        if self._lock_file >= 0:
            os.close(self._descriptor)
            os.close(self._lock_file)
            self._lock_file = -1

    # -- at start ---------------------------------------------------------------------------------------------------

    def _lock(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock_file = os.open(self._folder / "lock", flags, 0o600)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_file)
            raise JournalUnavailable(
                f"usage journal {self._folder}: another replica of this name is running here; stop it, or "
                "give this one another --replica-name"
            ) from None

    def _recover(self) -> None:
        paths = disk.segment_paths(self._folder)
        for path in paths:
            number = int(path.stem)
            for offset, record in disk.read_segment(path, last=path == paths[-1]):
                if isinstance(record, Checkpoint):
                    for progress in record.running:
                        key = (progress.jti, progress.attempt)
                        if _packed(key) not in self._finals:
                            self._interrupted[key] = progress
                else:
                    key = (record.jti, record.attempt)
                    self._interrupted.pop(key, None)
                    if isinstance(record, Final):
                        self._finals[_packed(key)] = (number, offset)
        self._number = int(paths[-1].stem) if paths else 1
        self._descriptor = disk.create_segment(self._folder, self._number)
        self._size = os.fstat(self._descriptor).st_size
        if self._interrupted:
            log.warning("usage journal: %d prediction(s) were cut off by a crash", len(self._interrupted))

    # -- the writing thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                wait_until = time.monotonic() + CHECKPOINT_SECONDS
                while not self._urgent and not self._closing and (left := wait_until - time.monotonic()) > 0:
                    self._changed.wait(left)
                closing, self._urgent = self._closing, False
            try:
                written = self._commit()
            except Exception:
                log.exception("the usage journal failed")
                self._accepting, written = False, False
            if closing:
                return
            if not written:
                time.sleep(RETRY_SECONDS)

    def _commit(self) -> bool:
        """Write all waiting records with one fsync; return whether the write succeeded."""
        with self._changed:
            moved = [self._running[key] for key in self._dirty if key in self._running and key not in self._owed]
            owed, dropped = dict(self._owed), list(self._dropped)
            self._dirty.clear()
        began = time.monotonic()
        if not (moved or owed or dropped) and self._accepting:
            self._committed_at = began
            return True
        lines = [encode_line(Checkpoint(moved))] if moved else []
        lines += [encode_line(Dropped(*key)) for key in dropped]
        places: dict[Key, int] = {}
        end = self._size + sum(map(len, lines))
        for key, (receipt, _) in owed.items():
            places[key] = end
            lines.append(encode_line(Final(*key, receipt)))
            end += len(lines[-1])
        try:
            self._append(b"".join(lines))
        except OSError as error:
            self._refused(error)
            return False
        self._committed_at = began
        self._settle(moved, owed, dropped, places)
        if self._size >= self._segment_bytes:
            self._rotate()
        return True

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        os.fdatasync(self._descriptor)
        self._size += len(data)

    def _refused(self, error: OSError) -> None:
        # Half a line may have been written, and after a failed fsync the content of the disk is unknown: cut back to
        # the last commit and write everything again.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._size)
        with self._changed:
            self._dirty.update(self._running)
            if self._accepting:
                message = "usage journal %s cannot be written (%s): no new predictions until it can; free some space"
                log.error(message, self._folder, error.strerror)
            self._accepting = False

    def _settle(
        self,
        moved: list[Progress],
        owed: dict[Key, tuple[str, Future[None]]],
        dropped: list[Key],
        places: dict[Key, int],
    ) -> None:
        with self._changed:
            if not self._accepting:
                log.warning("usage journal %s can be written again", self._folder)
            self._accepting = True
            for progress in moved:
                self._written[progress.jti, progress.attempt] = progress.completion_tokens
            for key in dropped:
                self._written.pop(key, None)
            del self._dropped[: len(dropped)]
            for key in owed:
                self._finals[_packed(key)] = (self._number, places[key])
                for table in (self._owed, self._running, self._interrupted, self._written):
                    table.pop(key, None)
        for _, done in owed.values():
            _resolve(done)

    def _rotate(self) -> None:
        """Start the next segment with a snapshot of the running predictions, so that old segments can be deleted."""
        with self._changed:
            snapshot = list(self._running.values()) + list(self._interrupted.values())
        old, size = self._descriptor, self._size
        try:
            self._descriptor, self._size = disk.create_segment(self._folder, self._number + 1), 0
            self._append(encode_line(Checkpoint(snapshot)))
        except OSError as error:
            log.error("usage journal %s: no new segment (%s)", self._folder, error.strerror)
            if self._descriptor != old:
                os.close(self._descriptor)
                with contextlib.suppress(OSError):
                    disk.segment_path(self._folder, self._number + 1).unlink()
            self._descriptor, self._size = old, size
            return
        os.close(old)
        self._number += 1
        self._forget_before(self._number - self._keep + 1)

    def _forget_before(self, first: int) -> None:
        old = [path for path in disk.segment_paths(self._folder) if int(path.stem) < first]
        if not old:
            return
        with self._changed:
            self._finals = {packed: place for packed, place in self._finals.items() if place[0] >= first}
        for path in old:
            with contextlib.suppress(OSError):
                path.unlink()


def _packed(key: Key) -> bytes:
    """Return the key in 18 bytes, because a journal remembers hundreds of thousands."""
    return UUID(key[0]).bytes + key[1].to_bytes(2, "big")


def _resolve(done: Future[None]) -> None:
    # The waiting task may have been cancelled meanwhile.
    if done.set_running_or_notify_cancel():
        done.set_result(None)
