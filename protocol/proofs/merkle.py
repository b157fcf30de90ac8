"""Merkle trees as certificate logs have them (RFC 6962, section 2.1), and the two proofs about them (RFC 9162, 2.1).

A tree is a list of leaf hashes. The makers of proofs get the hash of any run of leaves from a callback, so that a large
tree needs not be in memory; the verifiers need the proof alone. Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

# (first leaf, last leaf + 1) → the hash of the subtree over them.
RangeHash = Callable[[int, int], bytes]

EMPTY_ROOT = hashlib.sha256(b"").digest()
_LEAF, _NODE = b"\0", b"\1"  # no leaf can be passed off as a node, nor a node as a leaf


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf's bytes."""
    return hashlib.sha256(_LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node from the hashes of its children."""
    return hashlib.sha256(_NODE + left + right).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root of the tree over these leaf hashes."""
    return range_hash_of(leaves)(0, len(leaves))


def range_hash_of(leaves: Sequence[bytes]) -> RangeHash:
    """Return the callback for a tree whose leaf hashes are all in memory."""

    def range_hash(first: int, end: int) -> bytes:
        if first == end:
            return EMPTY_ROOT
        if end - first == 1:
            return leaves[first]
        middle = first + split(end - first)
        return node_hash(range_hash(first, middle), range_hash(middle, end))

    return range_hash


def split(count: int) -> int:
    """Return how many of `count` ≥ 2 leaves are under the left child: the largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def inclusion_path(index: int, size: int, range_hash: RangeHash) -> list[bytes]:
    """Return the siblings from leaf `index` up to the root of the first `size` leaves; raises ValueError outside it."""
    if not 0 <= index < size:
        raise ValueError("the leaf is not in the tree")
    path: list[bytes] = []
    first, end = 0, size
    while end - first > 1:
        middle = first + split(end - first)
        if index < middle:
            path.append(range_hash(middle, end))
            end = middle
        else:
            path.append(range_hash(first, middle))
            first = middle
    return path[::-1]


def consistency_path(first: int, second: int, range_hash: RangeHash) -> list[bytes]:
    """Return the proof that the tree of the first `first` leaves is the beginning of the tree of `second` leaves.

    Raises ValueError unless 0 < first ≤ second.
    """
    if not 0 < first <= second:
        raise ValueError("the first tree is not the smaller one")
    path: list[bytes] = []
    start, end, whole = 0, second, True
    while first - start != end - start:
        middle = start + split(end - start)
        if first <= middle:
            path.append(range_hash(middle, end))
            end = middle
        else:
            path.append(range_hash(start, middle))
            start, whole = middle, False
    if not whole:
        path.append(range_hash(start, end))
    return path[::-1]


def proves_inclusion(leaf: bytes, index: int, size: int, path: Iterable[bytes], root: bytes) -> bool:
    """Return whether `path` shows that the leaf hash `leaf` is at `index` of the tree of `size` leaves with `root`."""
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def proves_consistency(first: int, first_root: bytes, second: int, second_root: bytes, path: Sequence[bytes]) -> bool:
    """Return whether `path` shows that the tree of `first` leaves is the beginning of the tree of `second` leaves."""
    if not 0 < first <= second:
        return False
    if first == second:
        return not path and first_root == second_root
    # The smaller tree is a whole subtree of the larger one: its root is the proof's first hash, and left out.
    siblings = [first_root, *path] if first & (first - 1) == 0 else list(path)
    if not siblings:
        return False
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = siblings[0]
    for sibling in siblings[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and old == first_root and new == second_root
