"""Views of this replica for the fleet link: what it is and has now, as a change of what it told before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from protocol.admin import ReplicaFigures
from protocol.fleet import (
    FULL_SECONDS,
    MAX_KEYS,
    MOST_VIEW_SECONDS,
    FleetView,
    KeyChange,
    LoadNow,
    pack_keys,
)
from routing import key_of

FIGURES_SECONDS = 2.0

key_of_digest = lru_cache(maxsize=1 << 16)(key_of)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A replica now; see `protocol.fleet.FleetView`. adapters, near: digests; prefixes: keys of conversations"""

    load: LoadNow
    figures: ReplicaFigures
    load_seconds: float = 0.0
    near_seconds: float = 0.0
    token_seconds: float = 0.0
    adapters: Sequence[str] = ()
    near: Sequence[str] = ()
    prefixes: Sequence[int] = ()


@dataclass(slots=True)
class _Set:
    """A set of keys, as it was told."""

    told: frozenset[int] = frozenset()

    def change(self, now: Iterable[int], *, full: bool) -> KeyChange:
        before, self.told = self.told, frozenset(sorted(now)[:MAX_KEYS])
        if full:
            return KeyChange(pack_keys(sorted(self.told)))
        return KeyChange(pack_keys(sorted(self.told - before)), pack_keys(sorted(before - self.told)))


@dataclass(slots=True)
class Views:
    """The views of one link, in their order: a full one first, and then whenever the last is ten seconds old."""

    seq: int = 0
    _load: LoadNow | None = None
    _at: float = float("-inf")
    _full_at: float = float("-inf")
    _figures_at: float = float("-inf")
    _adapters: _Set = field(default_factory=_Set)
    _near: _Set = field(default_factory=_Set)
    _prefixes: _Set = field(default_factory=_Set)

    def next(
        self, snapshot: Snapshot, now: float, *, returned: Sequence[str] = (), dropped: Sequence[str] = ()
    ) -> FleetView | None:
        """Return the view of this moment, None where nothing changed within the last second."""
        full = now - self._full_at >= FULL_SECONDS
        adapters = self._adapters.change(map(key_of_digest, snapshot.adapters), full=full)
        near = self._near.change(map(key_of_digest, snapshot.near), full=full)
        prefixes = self._prefixes.change(snapshot.prefixes, full=full)
        nothing = KeyChange()
        news = any(change != nothing for change in (adapters, near, prefixes)) or bool(returned or dropped)
        if not (full or news or snapshot.load != self._load or now - self._at >= MOST_VIEW_SECONDS):
            return None
        self.seq, self._at, self._load = self.seq + 1, now, snapshot.load
        if full:
            self._full_at = now
        with_figures = now - self._figures_at >= FIGURES_SECONDS
        if with_figures:
            self._figures_at = now
        return FleetView(
            seq=self.seq,
            full=full,
            load=snapshot.load,
            ended=snapshot.figures.finished,
            load_seconds=snapshot.load_seconds,
            near_seconds=snapshot.near_seconds,
            token_seconds=snapshot.token_seconds,
            adapters=adapters,
            near=near,
            prefixes=prefixes,
            figures=snapshot.figures if with_figures else None,
            returned=tuple(returned),
            dropped=tuple(dropped),
        )
