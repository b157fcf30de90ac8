"""Blocks are free, used or cached; keys say what is in them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.kv.content import Content
from serving.kv.pool import PAD_BLOCK, BlockPool
from serving.kv.prefix import block_key, root_key


def test_the_padding_block_is_never_handed_out() -> None:
    pool = BlockPool(5, 4)
    assert PAD_BLOCK not in pool.allocate(4)
    with pytest.raises(MemoryError):
        pool.allocate(1)


def test_a_published_block_outlives_its_user_until_it_is_needed() -> None:
    pool = BlockPool(4, 4)
    first, second, third = pool.allocate(3)
    pool.publish(first, Content(b"k1", None))
    pool.publish(second, Content(b"k2", None))
    pool.release([first, second, third])
    assert pool.match([b"k1", b"k2"]) == [first, second]
    pool.allocate(2)  # the free one, then the tail of the chain, which is reclaimed before its prefix
    assert pool.match([b"k1", b"k2"]) == [first] and pool.evictions == 1


def test_a_block_in_use_is_shared_and_not_reclaimed() -> None:
    pool = BlockPool(3, 4)
    block = pool.allocate(1)[0]
    pool.publish(block, Content(b"k", "a"))
    pool.take([block])
    pool.release([block])
    assert pool.used == 1 and pool.match([b"k"]) == [block]
    pool.release([block])
    assert pool.available == 2
    with pytest.raises(AssertionError):
        pool.release([block])


def test_dropping_an_adapter_forgets_its_blocks_and_no_others() -> None:
    pool = BlockPool(6, 4)
    a, b, busy = pool.allocate(3)
    pool.publish(a, Content(b"a", "a"))
    pool.publish(b, Content(b"b", "b"))
    pool.publish(busy, Content(b"busy", "a"))
    pool.release([a, b])
    assert pool.drop("a") == [a]
    assert [pool.match([key]) for key in (b"a", b"b", b"busy")] == [[], [b], []]
    pool.check_integrity()


def test_a_limit_takes_cached_blocks_at_once_and_used_ones_when_they_are_released() -> None:
    pool = BlockPool(9, 4)
    old, young, busy, last = pool.allocate(4)
    for block in (old, young, busy, last):
        pool.publish(block, Content(b"%d" % block, None))
    pool.release([old])
    pool.release([young])
    pool.set_limit(3)
    assert pool.held == 3 and pool.match([b"%d" % old]) == [] and pool.match([b"%d" % young]) == [young]
    pool.set_limit(1)
    assert pool.used == 2 and pool.available == 0 and pool.match([b"%d" % young]) == []
    with pytest.raises(MemoryError):
        pool.allocate(1)
    pool.release([busy])
    assert pool.held == 1 and pool.match([b"%d" % busy]) == [], "released beyond the limit: not cached"
    pool.set_limit(100)
    assert pool.limit == 8 and pool.available == 7
    pool.check_integrity()


def test_within_a_limit_the_oldest_cached_block_is_reused_though_others_are_free() -> None:
    pool = BlockPool(9, 4)
    pool.set_limit(2)
    first, second = pool.allocate(2)
    pool.publish(first, Content(b"1", None))
    pool.publish(second, Content(b"2", None))
    pool.release([first])
    assert pool.allocate(1) == [first] and pool.held == 2 and pool.evictions == 1
    assert first not in pool.free_blocks() and len(pool.free_blocks()) == 6


def test_tokens_computed_again_after_reclaim_are_counted() -> None:
    pool = BlockPool(2, 4)
    for key in (b"1", b"2", b"1", b"3", b"1"):
        block = pool.allocate(1)[0]
        pool.publish(block, Content(key, None))
        pool.release([block])
    assert pool.evictions == 4 and pool.recomputed == 2


def test_matching_stops_at_the_first_gap() -> None:
    pool = BlockPool(4, 4)
    one, two = pool.allocate(2)
    pool.publish(one, Content(b"1", None))
    pool.publish(two, Content(b"3", None))
    assert pool.match([b"1", b"2", b"3"]) == [one]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=60))
def test_any_sequence_of_operations_keeps_every_block_accounted_for(steps: list[tuple[int, int]]) -> None:
    pool, held = BlockPool(8, 4), list[int]()
    for operation, value in steps:
        if operation == 0 and pool.available:
            held += pool.allocate(1)
        elif operation == 1 and held:
            pool.release([held.pop(value % len(held))])
        elif operation == 2 and held:
            pool.publish(held[value % len(held)], Content(bytes([value]), str(value % 2)))
        elif operation == 3:
            found = pool.match([bytes([value])])
            pool.take(found)
            held += found
        elif operation == 4:
            pool.drop(str(value % 2))
        elif operation == 5:
            pool.set_limit(value)
        pool.check_integrity()
        assert pool.used == len(set(held))


def test_keys_differ_in_every_part_and_where_parts_are_cut() -> None:
    roots = [
        root_key("scope", "digest", "base"),
        root_key("scop", "edigest", "base"),
        root_key("scope", "digestb", "ase"),
        root_key("scope", None, "base"),
        root_key("scope", "", "base"),
        root_key("other", "digest", "base"),
        root_key("scope", "digest", "other"),
    ]
    assert len(set(roots)) == len(roots)
    keys = [
        block_key(roots[0], [1, 2]),
        block_key(roots[0], [1, 2, 0]),
        block_key(roots[0], [258]),
        block_key(roots[1], [1, 2]),
        block_key(block_key(roots[0], [1]), [2]),
    ]
    assert len(set(keys)) == len(keys)


def test_the_nearest_block_behind_a_prefix_is_found_until_it_is_evicted_or_dropped() -> None:
    pool = BlockPool(6, 4)
    one, two, other = pool.allocate(3)
    pool.publish(one, Content(b"1", "a", None, b"root", (1, 2, 3, 4)))
    pool.publish(two, Content(b"2", "a", None, b"root", (1, 2, 9, 9)))
    pool.publish(other, Content(b"3", "b", None, b"elsewhere", (1, 2, 9, 8)))
    assert pool.nearest(b"root", [1, 2, 9, 7]) == (two, 3)
    assert pool.nearest(b"root", [1, 2, 3]) == (one, 3)
    assert pool.nearest(b"root", [5]) is None is pool.nearest(b"nowhere", [1]) is pool.nearest(b"root", [])
    pool.release([one, two, other])
    pool.check_integrity()
    pool.drop("a")
    assert pool.nearest(b"root", [1, 2, 9]) is None and pool.nearest(b"elsewhere", [1, 2, 9]) == (other, 3)
    pool.allocate(5)
    assert pool.nearest(b"elsewhere", [1, 2, 9]) is None
    pool.check_integrity()
