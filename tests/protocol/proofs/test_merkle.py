"""Trees and proofs: the published vectors of certificate logs, every small tree, and every way to lie about one."""

from __future__ import annotations

import pytest

from protocol.proofs.merkle import (
    EMPTY_ROOT,
    consistency_path,
    inclusion_path,
    leaf_hash,
    proves_consistency,
    proves_inclusion,
    range_hash_of,
    root_of,
)

# The eight leaves and some roots of the tests of Certificate Transparency's reference implementation.
INPUTS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
LEAVES = [leaf_hash(bytes([number])) for number in range(33)]


@pytest.mark.parametrize(("size", "root"), ROOTS.items())
def test_the_roots_are_those_of_certificate_logs(size: int, root: str) -> None:
    assert root_of([leaf_hash(bytes.fromhex(text)) for text in INPUTS[:size]]).hex() == root


def test_an_empty_tree_has_the_hash_of_nothing() -> None:
    assert root_of([]) == EMPTY_ROOT


def test_every_leaf_of_every_small_tree_is_proven_and_no_other() -> None:
    for size in range(1, len(LEAVES) + 1):
        leaves = LEAVES[:size]
        root, hashes = root_of(leaves), range_hash_of(leaves)
        for index in range(size):
            path = inclusion_path(index, size, hashes)
            assert proves_inclusion(leaves[index], index, size, path, root)
            assert not proves_inclusion(leaf_hash(b"other"), index, size, path, root)
            assert not proves_inclusion(leaves[index], index + 1, size, path, root)
            assert not proves_inclusion(leaves[index], index, size, [*path, root], root)
            assert not path or not proves_inclusion(leaves[index], index, size, path[:-1], root)


def test_every_small_tree_is_the_beginning_of_every_larger_one_and_of_no_other() -> None:
    other = root_of([leaf_hash(b"other"), *LEAVES[1:]])
    for second in range(1, len(LEAVES) + 1):
        hashes = range_hash_of(LEAVES[:second])
        root = root_of(LEAVES[:second])
        for first in range(1, second + 1):
            path = consistency_path(first, second, hashes)
            small = root_of(LEAVES[:first])
            assert proves_consistency(first, small, second, root, path)
            assert not proves_consistency(first, other, second, root, path)
            assert not proves_consistency(first, small, second, other, path)
            assert not proves_consistency(first, small, second, root, [*path, root])
            assert first == second or not proves_consistency(first, small, second, root, path[:-1])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (3, 3), (-1, 3)])
def test_a_leaf_outside_the_tree_has_no_path(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="not in the tree"):
        inclusion_path(index, size, range_hash_of(LEAVES))
    assert not proves_inclusion(LEAVES[0], index, size, [], LEAVES[0])


def test_a_larger_tree_is_not_the_beginning_of_a_smaller_one() -> None:
    for first, second in ((0, 3), (4, 3)):
        with pytest.raises(ValueError, match="smaller"):
            consistency_path(first, second, range_hash_of(LEAVES))
        assert not proves_consistency(first, LEAVES[0], second, LEAVES[0], [])
