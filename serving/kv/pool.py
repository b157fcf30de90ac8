"""A pool of KV blocks with reference counts and a prefix cache.

A block is free, used (ref count > 0), or cached (ref count 0, found by its key, evicted in LRU order). Block 0 is never
allocated: it pads block tables and stays zero, so it cannot carry one sequence's numbers into another's. At most
`limit` blocks are used or cached: adapters may have the memory of the others (`serving.engine.sharing`).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from serving.kv.content import Content

PAD_BLOCK = 0


# Blocks behind one prefix that are compared with a prompt, token by token; the latest published come first.
_COMPARED = 16


@dataclass(slots=True)
class _Block:
    users: int = 0
    content: Content | None = None


class BlockPool:
    """Allocates block ids. Not thread-safe: the engine thread owns it.

    on_reclaim: called with a cached block that is about to be another's, whose KV can still be copied, and its content
    """

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        if num_blocks < 2:
            raise ValueError("a pool needs at least one block besides the padding block")
        self.num_blocks, self.block_size, self.caching = num_blocks, block_size, caching
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, PAD_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._by_key: dict[bytes, int] = {}
        self._by_digest: defaultdict[str | None, set[int]] = defaultdict(set)
        # Blocks by the key before theirs and their first token, latest last.
        self._siblings: dict[tuple[bytes, int], dict[int, None]] = {}
        self.limit = num_blocks - 1
        self.hits = self.evictions = 0
        # Keys that were reclaimed, latest last; `recomputed` counts those that had to be computed once more.
        self._reclaimed: OrderedDict[bytes, None] = OrderedDict()
        self.recomputed = 0
        self.on_reclaim: Callable[[int, Content], None] | None = None

    @property
    def available(self) -> int:
        """Number of blocks that `allocate` can return: free or cached, within the limit."""
        return max(0, self.limit - self.used)

    @property
    def free(self) -> int:
        """Number of blocks that `allocate` returns without evicting any."""
        return max(0, min(len(self._free), self.limit - self.held))

    @property
    def used(self) -> int:
        return self.held - len(self._cached)

    @property
    def held(self) -> int:
        """Number of blocks that are used or cached."""
        return self.num_blocks - 1 - len(self._free)

    @property
    def capacity_tokens(self) -> int:
        return self.limit * self.block_size

    def content(self, block: int) -> Content | None:
        """Return what a published block holds; None for any other."""
        return self._blocks[block].content

    def contents(self) -> list[Content]:
        """Return what published blocks hold: what nobody uses now first, the last used last, then what is in use."""
        used = [block for block in self._by_key.values() if block not in self._cached]
        held = (self._blocks[block].content for block in (*self._cached, *used))
        return [content for content in held if content is not None]

    def users(self, block: int) -> int:
        """Return the ref count of `block`: the number of sequences that hold it."""
        return self._blocks[block].users

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks with one user each. Their content is stale: the caller zeroes them.

        Raises MemoryError if fewer are available.
        """
        if count > self.available:
            raise MemoryError(f"{count} KV blocks wanted, {self.available} available")
        out = []
        for _ in range(count):
            block = self._free.pop() if self._free and self.held < self.limit else self._reclaim()
            self._blocks[block].users = 1
            out.append(block)
        return out

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """Return the blocks of the longest known prefix of `keys`, without taking them."""
        out: list[int] = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            out.append(block)
        return out

    def block_of(self, key: bytes) -> int | None:
        """Return the published block of this key. Safe to ask from any thread."""
        return self._by_key.get(key)

    def nearest(self, parent: bytes, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return the published block behind the key `parent` that begins most like `tokens`, and how many tokens agree;
        None where not even the first does."""
        if not tokens:
            return None
        best = None
        for block in list(reversed(self._siblings.get((parent, tokens[0]), {})))[:_COMPARED]:
            agreeing = 0
            content = self._blocks[block].content
            assert content is not None
            for one, other in zip(content.tokens, tokens, strict=False):
                if one != other:
                    break
                agreeing += 1
            if best is None or agreeing > best[1]:
                best = block, agreeing
        return best

    def idle(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks count as available now (cached and not used)."""
        return sum(block in self._cached for block in blocks)

    def take(self, blocks: Sequence[int]) -> None:
        """Add a user to blocks found by `match`."""
        for block in blocks:
            self.hold(block)
        self.hits += len(blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Add a user to blocks that are in use."""
        for block in blocks:
            if self._blocks[block].users < 1:
                raise AssertionError(f"block {block} is shared, but nobody holds it")
            self._blocks[block].users += 1

    def hold(self, block: int) -> None:
        """Add a user to a published block that is to be found later."""
        if self._blocks[block].users == 0:
            del self._cached[block]
        self._blocks[block].users += 1

    def publish(self, block: int, content: Content) -> None:
        """Make a full, computed block findable. A second block of the same content stays private to its user."""
        if content.key in self._reclaimed and self._may_publish(block, content.key):
            self.recomputed += 1
        self.restore(block, content)

    def restore(self, block: int, content: Content) -> None:
        """Publish a block whose KV was copied back instead of computed."""
        key = content.key
        if not self._may_publish(block, key):
            return
        self._reclaimed.pop(key, None)
        self._blocks[block].content = content
        self._by_key[key] = block
        self._by_digest[content.digest].add(block)
        if (place := _place(content)) is not None:
            self._siblings.setdefault(place, {})[block] = None

    def _may_publish(self, block: int, key: bytes) -> bool:
        return self.caching and key not in self._by_key and self._blocks[block].content is None

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one user of each block. Later blocks are evicted before earlier ones: prefixes outlive their tails."""
        for block in reversed(blocks):
            state = self._blocks[block]
            if state.users < 1:
                raise AssertionError(f"block {block} released more often than taken")
            state.users -= 1
            if state.users == 0:
                if state.content is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None
        self._keep_limit()

    def set_limit(self, blocks: int) -> None:
        """Set how many blocks may be used or cached. Cached blocks are evicted at once, used ones after their sequences
        end."""
        self.limit = min(max(blocks, 0), self.num_blocks - 1)
        self._keep_limit()

    def free_blocks(self) -> list[int]:
        """Return the free blocks."""
        return list(self._free)

    def drop(self, digest: str | None) -> list[int]:
        """Forget all prefixes computed with this adapter. Returns the blocks that it freed, for the caller to zero."""
        return self._drop(list(self._by_digest.pop(digest, ())))

    def drop_scope(self, scope: str) -> list[int]:
        """Forget all prefixes of a scope, as `drop` does those of an adapter."""
        contents = ((block, self._blocks[block].content) for block in self._by_key.values())
        return self._drop([block for block, content in contents if content is not None and content.scope == scope])

    def _drop(self, blocks: list[int]) -> list[int]:
        freed = []
        for block in blocks:
            self._forget(block)
            if block in self._cached:
                del self._cached[block]
                self._free.append(block)
                freed.append(block)
        return freed

    def _keep_limit(self) -> None:
        while self._cached and self.held > self.limit:
            self._free.append(self._reclaim())

    def _reclaim(self) -> int:
        """Evict the least recently used cached block and return it."""
        block, _ = self._cached.popitem(last=False)
        content = self._blocks[block].content
        assert content is not None
        if self.on_reclaim is not None:
            self.on_reclaim(block, content)
        self._reclaimed[content.key] = None
        if len(self._reclaimed) > self.num_blocks:
            self._reclaimed.popitem(last=False)
        self._forget(block)
        self.evictions += 1
        return block

    def _forget(self, block: int) -> None:
        content, self._blocks[block].content = self._blocks[block].content, None
        if content is None:
            return
        del self._by_key[content.key]
        self._by_digest.get(content.digest, set()).discard(block)
        if not self._by_digest.get(content.digest):
            self._by_digest.pop(content.digest, None)
        if (place := _place(content)) is not None:
            del self._siblings[place][block]
            if not self._siblings[place]:
                del self._siblings[place]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is exactly one of free, cached or used, and every key finds its
        block."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free) and not free & cached and PAD_BLOCK not in free | cached
        assert self.held <= max(self.limit, self.used)
        for index, block in enumerate(self._blocks):
            if index == PAD_BLOCK or index in free:
                assert block.users == 0 and block.content is None
            elif index in cached:
                assert block.users == 0 and block.content is not None
            else:
                assert block.users > 0
            assert block.content is None or self._by_key[block.content.key] == index
        contents = {index: block.content for index, block in enumerate(self._blocks) if block.content is not None}
        assert len(self._by_key) == len(contents) == sum(map(len, self._by_digest.values()))
        known = {block for siblings in self._siblings.values() for block in siblings}
        assert known == {index for index, content in contents.items() if _place(content) is not None}


def _place(content: Content) -> tuple[bytes, int] | None:
    """Return where `nearest` looks for a block: the key before its own, and its first token."""
    return (content.parent, content.tokens[0]) if content.parent is not None and content.tokens else None
