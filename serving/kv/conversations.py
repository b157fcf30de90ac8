"""Which conversations' KV is still here: the last full block of each one's latest prompt stands for all before it."""

from __future__ import annotations

import threading
from collections import OrderedDict

from serving.core import Sequence
from serving.kv.pool import BlockPool
from serving.kv.tiers import Tiers

MOST = 16_384


class Conversations:
    """The latest prompts of conversations, by the gateway's keys; the least recently used are forgotten first.

    Prefixes outlive their tails in the pool, so a prompt whose last block is there is there as a whole.
    """

    def __init__(self, pool: BlockPool, tiers: Tiers, most: int = MOST) -> None:
        self._pool, self._tiers, self._most = pool, tiers, most
        self._blocks: OrderedDict[int, bytes] = OrderedDict()  # conversation → key of a block
        self._lock = threading.Lock()

    def note(self, sequence: Sequence) -> None:
        """Note the prompt of a sequence that ended; called by the engine thread."""
        conversation = sequence.request.conversation
        full = sequence.prompt_tokens // self._pool.block_size
        if conversation is None or not 0 < full <= len(sequence.block_keys):
            return
        with self._lock:
            self._blocks[conversation] = sequence.block_keys[full - 1]
            self._blocks.move_to_end(conversation)
            if len(self._blocks) > self._most:
                self._blocks.popitem(last=False)

    def held(self, most: int) -> list[int]:
        """Return the conversations whose KV is in the pool or below it, latest first; the others are forgotten.

        Safe to ask from any thread.
        """
        with self._lock:
            gone = [one for one, key in self._blocks.items() if not self._is_held(key)]
            for one in gone:
                del self._blocks[one]
            return list(reversed(self._blocks))[:most]

    def _is_held(self, key: bytes) -> bool:
        return self._pool.block_of(key) is not None or self._tiers.holds(key)
