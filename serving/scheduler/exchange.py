"""KV blocks that leave for another replica, and those that come from one (docs/prefill-decode.md).

A block crosses under its key, which stands for scope, adapter, base, precision, layout and all tokens up to its end.
What comes is published under keys that this replica made itself, from tokens that it has: a peer cannot choose where
its bytes are found. Copies alone: which machine may ask for what is decided in `serving.platform`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.block_copies import BlockCopies, Ended
from serving.core import Request
from serving.kv.content import Content, Owner, Owners
from serving.kv.prefix import scoped_key
from serving.kv.tiers import Tiers
from serving.scheduler.tables import BlockTables


@dataclass(slots=True, eq=False)
class Arrival:
    """Blocks of one owner that are on their way here, in order.

    found: tokens of the prompt that need no computing without them
    over: their owner was forgotten meanwhile, or nobody waits for them any more: nothing more is taken
    """

    contents: list[Content]
    found: int
    placed: int = 0
    over: bool = False


@dataclass(slots=True)
class ExchangeCounts:
    """Blocks since start: lent to other replicas, and placed here. pulled_rate: bytes per second of latest pulls, 0
    before the first."""

    lent_blocks: int = 0
    placed_blocks: int = 0
    pulled_rate: float = 0.0


@dataclass(slots=True)
class Copied:
    """Copies of so many blocks, which a device may still be making: the memory is free once `ended` all say so."""

    blocks: int = 0
    ended: list[Ended] = field(default_factory=list)


class Exchange:
    """The pool's door to other replicas. Engine thread only; nothing is held from one call to the next."""

    def __init__(self, tables: BlockTables, tiers: Tiers) -> None:
        self._tables, self._pool, self._tiers = tables, tables.pool, tiers
        self._arrivals: set[Arrival] = set()
        self._copies: BlockCopies | None = None
        self.block_bytes, self.layout = 0, ""
        self.counts = ExchangeCounts()

    def attach(self, copies: BlockCopies, block_bytes: int, layout: str) -> None:
        """Say how blocks are copied, of how many bytes each, and what their bytes depend on (`replica.kv_layout`)."""
        self._copies, self.block_bytes, self.layout = copies, block_bytes, layout

    @property
    def arrivals(self) -> int:
        """Return how many arrivals are open."""
        return len(self._arrivals)

    @property
    def block_tokens(self) -> int:
        """Return the tokens of a block."""
        return self._pool.block_size

    # -- what leaves ------------------------------------------------------------------------------------------------

    def has(self, owner: Owner, keys: Sequence[bytes]) -> int:
        """Return how many of the first `keys` are blocks here that this owner may read."""
        for count, key in enumerate(keys):
            if self._readable(owner, key) is None:
                return count
        return len(keys)

    def lend(self, owner: Owner, keys: Sequence[bytes], out: memoryview) -> Copied:
        """Copy blocks to `out`, up to the first that is not here, or not for this owner."""
        assert self._copies is not None
        copied = Copied()
        for place, key in enumerate(keys):
            block = self._readable(owner, key)
            if block is None:
                break
            ended = self._copies.save(block, out[place * self.block_bytes : (place + 1) * self.block_bytes])
            copied.blocks += 1
            if ended is not None:
                copied.ended.append(ended)
        self.counts.lent_blocks += copied.blocks
        return copied

    def hottest(self, most: int) -> list[tuple[Content, int]]:
        """Return the last blocks of conversations, the last used first, and how many tokens end with each. Blocks that
        belong to an adapter's contract alone are none."""
        contents = self._pool.contents()
        inner, found = {content.parent for content in contents}, list[tuple[Content, int]]()
        for content in reversed(contents):
            if len(found) == most:
                break
            if content.scope is not None and content.key not in inner:
                blocks = self._before(content.owner, content.key, contents)
                found.append((content, len(blocks) * self._pool.block_size))
        return found

    def chain(self, owner: Owner, key: bytes) -> tuple[list[int], int]:
        """Return the tokens of all blocks up to the one of this key, and how many of the first are of the adapter's
        contract; nothing where a block is not here, or not for this owner."""
        contents = self._before(owner, key, self._pool.contents())
        shared = sum(len(content.tokens) for content in contents if content.scope is None)
        return [token for content in contents for token in content.tokens], shared

    def _before(self, owner: Owner, key: bytes, known: list[Content]) -> list[Content]:
        """Return what the blocks up to the one of this key hold, in order; `known`: all that is published."""
        found: list[Content] = []
        roots, scope = self._tables.roots(owner), owner[0] or ""
        while (block := self._readable(owner, key)) is not None:
            content = self._pool.content(block)
            assert content is not None and content.parent is not None
            found.insert(0, content)
            if content.parent in roots:
                return found
            key = content.parent
            if self._pool.block_of(key) is None:  # the first block of its scope, behind those of a contract
                shared = (one.key for one in known if one.scope is None and one.digest == owner[1])
                key = next((one for one in shared if scoped_key(one, scope) == content.parent), b"")
        return []

    def _readable(self, owner: Owner, key: bytes) -> int | None:
        block = self._pool.block_of(key)
        content = None if block is None else self._pool.content(block)
        if content is None or content.digest != owner[1] or content.scope not in (None, owner[0]):
            return None
        return block

    # -- what comes -------------------------------------------------------------------------------------------------

    def expect(self, request: Request) -> Arrival:
        """Return the blocks of a request's prompt that are neither in the pool nor on a level below it.

        End with `finish`.
        """
        contents, known = self._tables.contents_of(request), 0
        reuses = self._pool.caching and request.sampling.prompt_logprobs is None
        while reuses and known < len(contents) and self._is_here(contents[known].key):
            known += 1
        found = self._tables.found_tokens(request, [content.key for content in contents[:known]]) if reuses else 0
        arrival = Arrival(contents[known:] if reuses else [], found)
        self._arrivals.add(arrival)
        return arrival

    def ends_with(self, request: Request) -> bytes | None:
        """Return the key of the last block that a request's prompt may find."""
        contents = self._tables.contents_of(request)
        return contents[-1].key if contents else None

    def _is_here(self, key: bytes) -> bool:
        return self._pool.block_of(key) is not None or self._tiers.holds(key)

    def place(self, arrival: Arrival, count: int, data: memoryview) -> Copied:
        """Cache the next `count` blocks of an arrival, whose KV is `data`. Fewer where the pool has no room for more,
        none once the arrival is over: then the rest is of no use."""
        assert self._copies is not None
        copied = Copied()
        for place in range(count):
            if arrival.over or arrival not in self._arrivals:
                break
            content = arrival.contents[arrival.placed]
            if self._pool.block_of(content.key) is None:
                if not self._pool.available:
                    arrival.over = True
                    break
                (block,) = self._pool.allocate(1)
                ended = self._copies.restore(block, data[place * self.block_bytes : (place + 1) * self.block_bytes])
                self._pool.restore(block, content)
                self._pool.release([block])
                if ended is not None:
                    copied.ended.append(ended)
            arrival.placed += 1
            copied.blocks += 1
        self.counts.placed_blocks += copied.blocks
        return copied

    def finish(self, arrival: Arrival) -> int:
        """Take nothing more of an arrival; return how many of its blocks came."""
        arrival.over = True
        self._arrivals.discard(arrival)
        return arrival.placed

    def forget(self, owners: Owners) -> None:
        """End the arrivals of these owners: what is still on its way to them is dropped."""
        for arrival in self._arrivals:
            arrival.over |= any(owners(content.owner) for content in arrival.contents)
