"""The disk below the block pool: slots of one file, each an AES-256-GCM ciphertext of one block.

The engine thread copies a block into a frame and goes on; worker threads encrypt and write, read and decrypt. A slot's
nonce stays in memory and is used once, the block's key is authenticated with it, and the owner's key is never written:
when it is forgotten, every block of the owner is noise, whatever is left on the disk.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag

from serving.block_copies import Ended, Source, wait_for
from serving.errors import ConfigError
from serving.kv.block_keys import BlockKey, BlockKeys, KeyForgotten
from serving.kv.content import Content, Owners
from serving.kv.frames import Allocate, Frames
from serving.kv.spill_file import ALIGNED, SpillFile
from serving.kv.stores import Finished

log = logging.getLogger(__name__)

WORKERS = 2
TAG_BYTES, _NONCE_BYTES = 16, 12
# Plaintext on its way to the disk, and from it; at least so many blocks however large they are.
_FRAME_BYTES, _LEAST_FRAMES, _MOST_FRAMES = 32 << 20, 4, 64
# A slow disk, until the first loads are measured.
_TYPICAL_RATE = 5e8


@dataclass(slots=True, eq=False)
class _Job:
    """One block on its way. frame: the plaintext; error: why it failed"""

    slot: int
    content: Content
    key: BlockKey
    nonce: bytes
    frame: int
    loads: bool
    error: Exception | None = None
    seconds: float = 0.0


class DiskStore:
    """`serving.kv.stores.BlockStore` in a file of `size` bytes in `folder`, of which no trace outlives the process.

    Raises ConfigError when the folder does not serve, or is to hold less than one block.
    """

    name = "disk"
    parallel = WORKERS

    def __init__(self, folder: Path, size: int, block_bytes: int, allocate: Allocate) -> None:
        self.block_bytes = block_bytes
        self.slot_bytes = -(-(block_bytes + TAG_BYTES) // ALIGNED) * ALIGNED
        self.slots = size // self.slot_bytes
        if self.slots < 1:
            raise ConfigError(f"--kv-disk-gb: one block takes {self.slot_bytes / 1e9:.3f} GB")
        self.typical_seconds = block_bytes / _TYPICAL_RATE
        self.on_arrival: Callable[[], None] = lambda: None
        self.file = SpillFile(folder, size)
        self.keys = BlockKeys()
        count = min(max(_FRAME_BYTES // block_bytes, _LEAST_FRAMES), _MOST_FRAMES, self.slots)
        # Of their own, so that neither direction ever waits for the other's frames.
        self._saving, self._loading = (Frames(count, block_bytes, allocate) for _ in range(2))
        self._saved: dict[int, tuple[BlockKey, bytes]] = {}
        self._owners: dict[int, Content] = {}
        self._data: dict[int, int] = {}
        self._filling: list[tuple[Ended, _Job]] = []
        self._nonces = itertools.count(1)
        self._complained = False
        # Between the engine thread and the workers.
        self._work = threading.Condition()
        self._loads, self._saves, self._done = deque[_Job](), deque[_Job](), deque[_Job]()
        self._closing = False
        self._threads = [threading.Thread(target=self._run, name=f"kv-disk-{n}", daemon=True) for n in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    # -- the engine thread ------------------------------------------------------------------------------------------

    @property
    def takes_saves(self) -> bool:
        return self._saving.free > 0

    @property
    def takes_loads(self) -> bool:
        return self._loading.free > 0

    def save(self, slot: int, content: Content, source: Source) -> bool:
        """Copy a block out of its place and have it encrypted and written. False: there are too many owners."""
        key = self.keys.take(content.owner)
        if key is None:
            return False
        self._owners[slot] = content
        nonce = next(self._nonces).to_bytes(_NONCE_BYTES, "big")
        job = _Job(slot, content, key, nonce, self._saving.take(), loads=False)
        self._saved[slot] = key, nonce
        ended = source(self._saving.view(job.frame))
        if ended is None:
            self._submit(job)
        else:
            self._filling.append((ended, job))
        return True

    def load(self, slot: int, content: Content) -> None:
        """Have a block read and decrypted."""
        key, nonce = self._saved[slot]
        self._submit(_Job(slot, content, key, nonce, self._loading.take(), loads=True))

    def poll(self) -> list[Finished]:
        """Return the copies that ended; what a device has copied meanwhile goes to the workers."""
        waiting, self._filling = self._filling, []
        for ended, job in waiting:
            if ended():
                self._submit(job)
            else:
                self._filling.append((ended, job))
        finished = []
        while self._done:
            finished.append(self._finish(self._done.popleft()))
        return finished

    def release(self, slot: int) -> None:
        """Give back the frame of a load."""
        frame = self._data.pop(slot)
        if self.key_of(slot).place is None:
            self._loading.wipe([frame])
        self._loading.give(frame)

    def key_of(self, slot: int) -> BlockKey:
        """Return the key under which a saved block lies."""
        return self._saved[slot][0]

    def source(self, slot: int) -> None:
        """Return None: there is no level below."""

    def drop(self, slot: int) -> None:
        """Empty a slot. What is on the disk is overwritten some day; it opens no more once its key is gone."""
        key, _ = self._saved.pop(slot)
        self.keys.give(self._owners.pop(slot).owner, key)

    def forget(self, owners: Owners) -> None:
        """Wipe the keys of these owners, and plaintext that may be theirs in frames; those on their way are wiped when
        they arrive."""
        self.keys.forget(owners)
        self._saving.wipe()
        self._loading.wipe()

    def close(self) -> None:
        """Wait for the copies that run, wipe keys and frames, and let go of the file."""
        wait_for(ended for ended, _ in self._filling)
        with self._work:
            self._closing = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()
        self.keys.close()
        for frames in (self._saving, self._loading):
            frames.wipe(list(range(frames.count)))
        self.file.close()

    def _submit(self, job: _Job) -> None:
        with self._work:
            (self._loads if job.loads else self._saves).append(job)
            self._work.notify()

    def _finish(self, job: _Job) -> Finished:
        frames = self._loading if job.loads else self._saving
        ok = job.error is None
        if isinstance(job.error, KeyForgotten) or job.key.place is None:
            frames.wipe([job.frame])
        elif job.error is not None and not self._complained:
            self._complained = True  # a full or broken disk fails on every block
            log.warning("a block of KV could not be %s: %r", "read" if job.loads else "written", job.error)
        if job.loads and ok:
            self._data[job.slot] = job.frame
            return Finished(job.slot, True, job.seconds, frames.view(job.frame))
        frames.give(job.frame)
        return Finished(job.slot, ok, job.seconds)

    # -- the workers ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        buffer = memoryview(mmap.mmap(-1, self.slot_bytes))
        while (job := self._next()) is not None:
            began = time.perf_counter()
            try:
                if job.loads:
                    self._read(job, buffer)
                else:
                    self._write(job, buffer)
            except (OSError, InvalidTag, KeyForgotten) as error:
                job.error = error
            job.seconds = time.perf_counter() - began
            self._done.append(job)
            self.on_arrival()

    def _next(self) -> _Job | None:
        """Return the next job: loads before saves, for a request waits for a load."""
        with self._work:
            while not self._closing:
                if self._loads:
                    return self._loads.popleft()
                if self._saves:
                    return self._saves.popleft()
                self._work.wait()
            return None

    def _write(self, job: _Job, buffer: memoryview) -> None:
        sealed = buffer[: self.block_bytes + TAG_BYTES]
        self.keys.cipher(job.key).encrypt_into(job.nonce, self._saving.view(job.frame), job.content.key, sealed)
        self.file.write(buffer, job.slot * self.slot_bytes)

    def _read(self, job: _Job, buffer: memoryview) -> None:
        cipher = self.keys.cipher(job.key)
        self.file.read(buffer, job.slot * self.slot_bytes)
        sealed = buffer[: self.block_bytes + TAG_BYTES]
        cipher.decrypt_into(job.nonce, sealed, job.content.key, self._loading.view(job.frame))
