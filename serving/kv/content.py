"""The identity of a published KV block, by which it is found again after it has left the pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from serving.core import LatencyClass

# The scope and the adapter whose requests alone may read a block; no scope: every tenant of the adapter, for blocks
# that hold nothing but the instructions of its contract.
Owner = tuple[str | None, str | None]
# Chooses owners, whose blocks are to be forgotten.
Owners = Callable[[Owner], bool]


def of_adapter(digest: str | None) -> Owners:
    """Choose every scope of an adapter."""
    return lambda owner: owner[1] == digest


def of_scope(scope: str) -> Owners:
    """Choose every adapter of a scope."""
    return lambda owner: owner[0] == scope


@dataclass(frozen=True, slots=True)
class Content:
    """What a published block holds.

    key: of `serving.kv.prefix`; it stands for scope, adapter, base and all tokens up to the block's end
    digest, scope: of the owner
    parent, tokens: the key before its own and its tokens, by which `BlockPool.nearest` finds it
    latency_class: of the request that computed it
    """

    key: bytes
    digest: str | None
    scope: str | None = None
    parent: bytes | None = None
    tokens: tuple[int, ...] = ()
    latency_class: LatencyClass = LatencyClass.STANDARD

    @property
    def owner(self) -> Owner:
        return self.scope, self.digest
