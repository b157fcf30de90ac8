"""Organizations that are one: those that used the same card or share a member, also by way of others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID


def unite(groups: Iterable[Sequence[UUID]]) -> dict[UUID, UUID]:
    """Return for each organization in `groups` the one that stands for all it belongs with: the smallest id of them.

    The organizations of a group belong together, and so do groups that have one in common (union-find).
    """
    parent: dict[UUID, UUID] = {}

    def root(one: UUID) -> UUID:
        parent.setdefault(one, one)
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    for group in groups:
        for other in group:
            first, second = sorted((root(group[0]), root(other)))
            parent[second] = first
    return {one: root(one) for one in parent}
