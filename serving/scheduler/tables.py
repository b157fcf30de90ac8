"""Block tables: the cached prefix a sequence finds, the blocks it is given, publishes and releases."""

from __future__ import annotations

from serving.core import Sequence
from serving.kv.pool import BlockPool
from serving.kv.prefix import block_key, root_key, scoped_key, shared_root_key
from serving.steps import Chunk


class BlockTables:
    """The only place that allocates KV blocks to sequences."""

    def __init__(self, pool: BlockPool, fingerprint: str) -> None:
        self.pool, self._fingerprint = pool, fingerprint
        # Blocks that a launched step is filling. A sequence that needs one of them next waits and finds it cached,
        # instead of computing the same prompt at the same time.
        self._filling: set[bytes] = set()

    def missing(self, sequence: Sequence, drafted: int = 0) -> int:
        """Return how many blocks to add until all known or expected tokens have a place.

        drafted: tokens of a draft behind the last token whose KV is planned
        """
        tokens = sequence.planned + drafted if drafted else sequence.length
        return self.pool.blocks_for(tokens) - len(sequence.blocks)

    def prefix(self, sequence: Sequence) -> list[int]:
        """Return the cached blocks of the sequence's longest `reusable` prefix, without taking them."""
        if not self.pool.caching:
            return []
        count = sequence.reusable // self.pool.block_size
        self._extend_keys(sequence, count)
        return self.pool.match(sequence.block_keys[:count])

    def is_being_computed(self, sequence: Sequence) -> bool:
        """Return whether a launched step computes the first block that this sequence needs."""
        if not self._filling:
            return False
        found = len(self.prefix(sequence))
        return found < sequence.reusable // self.pool.block_size and (sequence.block_keys[found] in self._filling)

    def start(self, sequence: Sequence, spare: int) -> list[int] | None:
        """Give a sequence its cached prefix and fresh blocks for the rest.

        Returns the fresh blocks, or None if fewer than `spare` blocks would be left.
        """
        known = self.prefix(sequence)
        missing = self.pool.blocks_for(len(sequence.tokens)) - len(known)
        if missing + spare > self.pool.available - self.pool.idle(known):
            return None
        self.pool.take(known)
        fresh = self.pool.allocate(missing)
        sequence.blocks = known + fresh
        sequence.computed = sequence.planned = len(known) * self.pool.block_size
        return fresh

    def grow(self, sequence: Sequence, drafted: int = 0) -> list[int]:
        """Allocate the `missing` blocks, which the caller has made available, and return them."""
        fresh = self.pool.allocate(self.missing(sequence, drafted))
        sequence.blocks += fresh
        return fresh

    def launch(self, chunk: Chunk) -> None:
        """Note the blocks that a planned chunk is about to fill."""
        if chunk.count > 1:
            self._filling.update(chunk.sequence.block_keys[slice(*self._span(chunk))])

    def commit(self, chunk: Chunk) -> None:
        """Publish the blocks that a computed chunk has filled; its draft holds what was accepted alone."""
        sequence = chunk.sequence
        sequence.computed = chunk.end
        if not self.pool.caching:
            return
        first, last = self._span(chunk)
        if last > first:
            self._extend_keys(sequence, last, chunk.draft)
        for index in range(first, last):
            self.pool.publish(sequence.blocks[index], sequence.block_keys[index], sequence.digest)
            self._filling.discard(sequence.block_keys[index])

    def release(self, sequence: Sequence) -> None:
        """Release all blocks of a sequence; its published blocks stay cached."""
        size = self.pool.block_size
        self._filling.difference_update(sequence.block_keys[sequence.computed // size : sequence.planned // size])
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.planned = 0

    def _span(self, chunk: Chunk) -> tuple[int, int]:
        size = self.pool.block_size
        return chunk.start // size, chunk.end // size

    def _extend_keys(self, sequence: Sequence, count: int, accepted: tuple[int, ...] = ()) -> None:
        """Make the keys of the first `count` blocks. accepted: tokens that the sequence is about to get."""
        keys, size = sequence.block_keys, self.pool.block_size
        if len(keys) >= count:
            return
        request = sequence.request
        shared = request.shared_tokens // size  # blocks that hold nothing but what every tenant's prompt begins with
        if keys:
            parent = keys[-1]
        elif shared:
            parent = shared_root_key(sequence.digest, self._fingerprint)
        else:
            parent = root_key(request.cache_scope, sequence.digest, self._fingerprint)
        for index in range(len(keys), count):
            if index == shared and shared:
                parent = scoped_key(parent, request.cache_scope)
            tokens = sequence.tokens[index * size : (index + 1) * size]
            if len(tokens) < size:
                known = len(sequence.tokens)
                tokens += accepted[max(0, index * size - known) : (index + 1) * size - known]
            parent = block_key(parent, tokens)
            keys.append(parent)

    def check_integrity(self, running: list[Sequence]) -> None:
        """Raise AssertionError when sequences and pool disagree about the blocks that are held."""
        self.pool.check_integrity()
        users: dict[int, int] = {}
        for sequence in running:
            assert 0 <= sequence.computed <= sequence.planned <= sequence.length
            assert len(sequence.blocks) * self.pool.block_size >= sequence.planned
            assert len(set(sequence.blocks)) == len(sequence.blocks)
            for block in sequence.blocks:
                users[block] = users.get(block, 0) + 1
        assert len(users) == self.pool.used
        assert all(self.pool.users(block) == count for block, count in users.items())
        if not running:
            assert not self._filling
