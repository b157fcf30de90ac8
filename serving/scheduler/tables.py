"""Block tables: the cached prefix a sequence finds, the blocks it is given, publishes and releases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from serving.core import Request, Sequence
from serving.kv.content import Content, Owner
from serving.kv.pool import BlockPool
from serving.kv.prefix import block_key, root_key, scoped_key, shared_root_key
from serving.steps import Chunk


@dataclass(frozen=True, slots=True)
class Start:
    """The blocks of a sequence that starts.

    fresh: hold stale KV
    copy: (cached block, fresh block): the second begins as the first, whose KV is copied before the step
    """

    fresh: list[int]
    copy: tuple[int, int] | None


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
        if sequence.group is not None:
            needed = (self.pool.blocks_for(member.length) - len(member.blocks) for member in sequence.members)
            return sum(needed) + sum(map(self._writes_to_shared, sequence.members))
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

    def start(self, sequence: Sequence, spare: int) -> Start | None:
        """Give a sequence its cached prefix and fresh blocks for the rest, the first of them begun with a copy of the
        cached block that agrees with it longest.

        Returns None if fewer than `spare` blocks would be left.
        """
        known = self.prefix(sequence)
        missing = self.pool.blocks_for(len(sequence.tokens)) - len(known)
        if missing + spare > self.pool.available - self.pool.idle(known):
            return None
        self.pool.take(known)
        begun = self._begun(sequence, len(known)) if missing else None
        if begun is not None and missing > self.pool.available - self.pool.idle(begun[:1]):
            begun = None
        held = [] if begun is None else [begun[0]]
        self.pool.take(held)  # or it might be what is allocated
        fresh = self.pool.allocate(missing)
        self.pool.release(held)
        sequence.blocks = known + fresh
        agreeing = 0 if begun is None else begun[1]
        sequence.computed = sequence.planned = len(known) * self.pool.block_size + agreeing
        return Start(fresh, None if begun is None else (begun[0], fresh[0]))

    def _begun(self, sequence: Sequence, count: int) -> tuple[int, int] | None:
        """Return the cached block that begins as block `count` of the sequence, and how many tokens need not be
        computed."""
        size = self.pool.block_size
        most = min(size, sequence.reusable - count * size)
        if not self.pool.caching or most <= 0:
            return None
        tokens = sequence.tokens[count * size : count * size + most]
        return self.pool.nearest(self._parent(sequence.request, sequence.block_keys, count), tokens)

    def grow(self, sequence: Sequence, drafted: int = 0) -> list[int]:
        """Allocate the `missing` blocks, which the caller has made available, and return them."""
        if sequence.group is not None:
            return [block for member in sequence.members for block in self._grow_member(member)]
        fresh = self.pool.allocate(self.missing(sequence, drafted))
        sequence.blocks += fresh
        return fresh

    def share(self, parent: Sequence, child: Sequence) -> None:
        """Give `child`, which holds no blocks, those of `parent` and what is known of them; both hold them then."""
        self.pool.share(parent.blocks)
        child.blocks, child.block_keys = list(parent.blocks), list(parent.block_keys)
        child.computed, child.planned = parent.computed, parent.planned

    def part(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Give each member of a group a block of its own where its next token is written to one that it shares.

        The caller has made the `missing` blocks available. Returns pairs of blocks: the first is to be copied to the
        second before the step.
        """
        copies = []
        for member in sequence.members:
            if self._writes_to_shared(member):
                (own,) = self.pool.allocate(1)
                shared = member.blocks[-1]
                member.blocks = [*member.blocks[:-1], own]  # another list: see `Sequence.blocks`
                self.pool.release([shared])
                copies.append((shared, own))
        return copies

    def _writes_to_shared(self, member: Sequence) -> bool:
        """Return whether a group's member writes its next token behind others, in a block that another holds too. Such
        a block is the last one, which the members shared when they were one."""
        partly = member.planned % self.pool.block_size and len(member.blocks) == self.pool.blocks_for(member.planned)
        return bool(partly) and self.pool.users(member.blocks[-1]) > 1

    def _grow_member(self, member: Sequence) -> list[int]:
        fresh = self.pool.allocate(self.pool.blocks_for(member.length) - len(member.blocks))
        member.blocks += fresh
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
            self.pool.publish(sequence.blocks[index], self._content(sequence, index, chunk.draft))
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
        for index in range(len(sequence.block_keys), count):
            tokens = self._tokens(sequence, index, accepted)
            parent = self._parent(sequence.request, sequence.block_keys, index)
            sequence.block_keys.append(block_key(parent, tokens))

    def keys_of(self, request: Request) -> Iterator[bytes]:
        """Yield the keys of the blocks that a request's prompt may find, each made when it is asked for. Safe from any
        thread."""
        size, prompt = self.pool.block_size, request.prompt_token_ids
        keys: list[bytes] = []
        for start in range(0, len(prompt) - size, size):
            keys.append(block_key(self._parent(request, keys, start // size), prompt[start : start + size]))
            yield keys[-1]

    def contents_of(self, request: Request) -> list[Content]:
        """Return what the blocks hold that a request's prompt may find."""
        size, shared = self.pool.block_size, request.shared_tokens // self.pool.block_size
        contents: list[Content] = []
        keys: list[bytes] = []
        for index, key in enumerate(self.keys_of(request)):
            scope = None if index < shared else request.cache_scope
            tokens = tuple(request.prompt_token_ids[index * size : (index + 1) * size])
            parent = self._parent(request, keys, index)
            contents.append(Content(key, request.adapter.digest, scope, parent, tokens, request.latency_class))
            keys.append(key)
        return contents

    def roots(self, owner: Owner) -> set[bytes]:
        """Return the keys before the first block of any prompt of an owner."""
        scope, digest = owner
        return {root_key(scope or "", digest, self._fingerprint), shared_root_key(digest, self._fingerprint)}

    def found_tokens(self, request: Request, keys: list[bytes]) -> int:
        """Return how many tokens of a prompt need no computing where its first blocks, of these keys, are here."""
        size, prompt, known = self.pool.block_size, request.prompt_token_ids, len(keys)
        most = min(size, len(prompt) - 1 - known * size)
        if not self.pool.caching or most <= 0:
            return known * size
        begun = self.pool.nearest(self._parent(request, keys, known), prompt[known * size : known * size + most])
        return known * size + (0 if begun is None else begun[1])

    def _content(self, sequence: Sequence, index: int, accepted: tuple[int, ...]) -> Content:
        """Return what block `index` holds. accepted: tokens that the sequence is about to get."""
        request = sequence.request
        shared = index < request.shared_tokens // self.pool.block_size
        return Content(
            sequence.block_keys[index],
            sequence.digest,
            None if shared else request.cache_scope,
            self._parent(request, sequence.block_keys, index),
            self._tokens(sequence, index, accepted),
            request.latency_class,
        )

    def _parent(self, request: Request, keys: list[bytes], index: int) -> bytes:
        """Return the key that stands for all before block `index`, whose key need not be known."""
        digest = request.adapter.digest
        # Blocks that hold nothing but what every tenant's prompt begins with.
        shared = request.shared_tokens // self.pool.block_size
        if index:
            parent = keys[index - 1]
        elif shared:
            parent = shared_root_key(digest, self._fingerprint)
        else:
            parent = root_key(request.cache_scope, digest, self._fingerprint)
        return scoped_key(parent, request.cache_scope) if shared and index == shared else parent

    def _tokens(self, sequence: Sequence, index: int, accepted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens of block `index`. accepted: those that the sequence is about to get."""
        size, known = self.pool.block_size, len(sequence.tokens)
        start, end = index * size, (index + 1) * size
        return (*sequence.tokens[start:end], *accepted[max(0, start - known) : max(0, end - known)])

    def check_integrity(self, running: list[Sequence], held: Iterable[int]) -> None:
        """Raise AssertionError when sequences and pool disagree about the blocks that are held.

        held: blocks held for sequences that wait, once for each
        """
        self.pool.check_integrity()
        users: dict[int, int] = {}
        for block in held:
            users[block] = users.get(block, 0) + 1
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
