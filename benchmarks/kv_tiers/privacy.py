"""The disk of a replica holds no KV that can be read: a scan for what was written, and what a revocation leaves."""

from __future__ import annotations

import asyncio
import mmap
import random
from dataclasses import dataclass
from typing import Any

from benchmarks.kv_tiers.traffic import ask, documents
from serving.engine import Engine
from serving.kv.block_keys import KeyForgotten
from serving.kv.level import State
from serving.kv.spill import DiskStore

# Bytes of KV that are looked for: random ones do not occur by chance, and zeros of padding are not taken.
_CANARIES, _CANARY_BYTES = 32, 32
_DOCUMENTS = 12


@dataclass
class _Recorder:
    """Notes a piece of each of the first blocks that are spilled, beside the copy that goes to the disk."""

    copies: Any
    canaries: list[bytes]

    def save(self, block: int, out: memoryview) -> Any:
        ended = self.copies.save(block, out)
        if len(self.canaries) < _CANARIES:
            plain = bytes(out)
            start = random.Random(block).randrange(len(plain) // 2)
            pieces = (plain[at : at + _CANARY_BYTES] for at in range(start, len(plain), _CANARY_BYTES))
            self.canaries.append(next(piece for piece in pieces if len(set(piece)) > _CANARY_BYTES // 2))
        return ended

    def restore(self, block: int, data: memoryview) -> Any:
        return self.copies.restore(block, data)


async def measure(engine: Engine, digest: str) -> dict[str, int]:
    """Spill documents of an adapter, scan the file, revoke the adapter, and try to open what is left."""
    tiers = engine.planner.restores.tiers
    (level,) = tiers.levels
    assert isinstance(level.store, DiskStore)
    recorder = _Recorder(tiers.copies, [])
    tiers.copies = recorder
    texts, rng = documents(_DOCUMENTS, engine.vocab_size, 5), random.Random(5)
    for number, text in enumerate(texts):
        await ask(engine, number, text, digest, rng)
    while any(copy.state is not State.SPILLED for copy in list(level.copies.values())):
        await asyncio.sleep(0.05)
    mine = [copy for copy in level.copies.values() if copy.content.digest == digest]
    found = _scan(level.store, recorder.canaries)
    saved = [level.store.key_of(copy.slot) for copy in mine]
    await asyncio.wrap_future(engine.revoke(digest))
    opened = 0
    for key in saved:
        try:
            level.store.keys.cipher(key)
            opened += 1
        except KeyForgotten:
            pass
    left = sum(copy.content.digest == digest for copy in level.copies.values())
    return {
        "canaries": len(recorder.canaries),
        "canaries_found": found,
        "adapter_blocks": len(mine),
        "found_after_revocation": left,
        "opened_after_revocation": opened,
    }


def _scan(store: DiskStore, canaries: list[bytes]) -> int:
    """Return how many of the canaries occur anywhere in the file."""
    found: set[bytes] = set()
    with mmap.mmap(-1, store.slot_bytes) as buffer:
        for slot in range(store.slots):
            try:
                with memoryview(buffer) as view:
                    store.file.read(view, slot * store.slot_bytes)
            except OSError:  # the end of what was written
                break
            found |= {canary for canary in canaries if buffer.find(canary, 0) >= 0}
    return len(found)
