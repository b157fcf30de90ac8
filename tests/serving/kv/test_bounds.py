"""The KV pool's rules with a number or an order: what fits into so many blocks, what goes first, how many are asked."""

from __future__ import annotations

from typing import cast

import pytest

from serving.kv.block_keys import MOST_OWNERS, BlockKeys
from serving.kv.content import Content
from serving.kv.conversations import MOST, Conversations
from serving.kv.pool import BlockPool
from serving.kv.tiers import Tiers
from tests.serving.kv.test_conversations import ended, publish


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (15, 4), (16, 4), (17, 5)]
)
def test_a_prompt_takes_as_many_blocks_as_it_fills_or_begins(tokens: int, blocks: int) -> None:
    assert BlockPool(8, 4).blocks_for(tokens) == blocks


def test_what_was_released_longest_ago_is_evicted_first() -> None:
    pool = BlockPool(5, 4)
    blocks = {key: pool.allocate(1)[0] for key in (b"1", b"2", b"3", b"4")}
    for key, block in blocks.items():
        pool.publish(block, Content(key, None))
    for key in (b"3", b"1", b"4", b"2"):
        pool.release([blocks[key]])
    pool.take([blocks[b"1"]])  # used once more, and so the last to go
    pool.release([blocks[b"1"]])
    for key in (b"3", b"4", b"2", b"1"):
        assert pool.allocate(1) == [blocks[key]]


def test_of_a_sequence_s_blocks_the_last_is_evicted_first() -> None:
    pool = BlockPool(4, 4)
    blocks = pool.allocate(3)
    for number, block in enumerate(blocks):
        pool.publish(block, Content(b"%d" % number, None))
    pool.release(blocks)
    assert pool.allocate(3) == blocks[::-1]


@pytest.mark.parametrize(("behind", "agreeing"), [(15, 3), (16, 1)])
def test_the_sixteen_blocks_that_were_published_last_behind_a_prefix_are_compared(behind: int, agreeing: int) -> None:
    pool = BlockPool(40, 4)
    first, *others = pool.allocate(1 + behind)
    pool.publish(first, Content(b"first", None, None, b"root", (1, 2, 3, 4)))
    for number, block in enumerate(others):
        pool.publish(block, Content(b"%d" % number, None, None, b"root", (1, 9, 9, 9)))
    nearest = pool.nearest(b"root", [1, 2, 3])
    assert nearest is not None and nearest[1] == agreeing and (nearest[0] == first) is (agreeing == 3)


def test_a_scope_that_is_dropped_takes_no_block_of_another_or_of_nobody() -> None:
    pool = BlockPool(6, 4)
    scopes = (b"mine", b"yours", None)
    blocks = pool.allocate(3)
    for block, scope in zip(blocks, scopes, strict=True):
        name = None if scope is None else scope.decode()
        pool.publish(block, Content(b"%d" % block, "a", name))
    pool.release(blocks)
    assert pool.drop_scope("mine") == [blocks[0]]
    assert [pool.block_of(b"%d" % block) for block in blocks] == [None, *blocks[1:]]


def test_as_many_owners_as_there_is_locked_memory_for_have_keys_and_no_more() -> None:
    keys = BlockKeys(most=2)
    first = keys.take(("scope", "a"))
    assert first is not None and keys.take(("scope", "b")) is not None
    assert keys.take(("scope", "c")) is None and keys.take(("scope", "a")) is first, "a known owner has its own"
    keys.give(("scope", "a"), first)
    assert keys.take(("scope", "c")) is None, "one of its blocks is still there"
    keys.give(("scope", "a"), first)
    assert keys.take(("scope", "c")) is not None
    keys.close()
    assert MOST_OWNERS * 32 == 128 << 10, "within the memory that systems let any process lock"


def test_16_384_conversations_are_remembered() -> None:
    pool = BlockPool(8, 4)
    known = Conversations(pool, Tiers(pool))
    publish(pool, b"one")
    for conversation in range(MOST + 1):
        known.note(ended(conversation, cast(list[bytes], [b"one"]), prompt=4))
    held = known.held(MOST + 10)
    assert MOST == 16_384 == len(held) and 0 not in held and 1 in held
