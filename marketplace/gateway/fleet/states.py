"""A replica as its views put it together: its latest load, and sets that each view changes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from protocol.fleet import FleetView, KeyChange
from routing import KeySet


@dataclass(slots=True)
class ReplicaState:
    """What one boot told on its link.

    at: when its last view came, in seconds of this process's clock; whole: whether no view is missing from the sets
    """

    replica_id: uuid.UUID
    name: str
    view: FleetView
    at: float
    whole: bool = False
    adapters: KeySet = field(default_factory=KeySet)
    near: KeySet = field(default_factory=KeySet)
    prefixes: KeySet = field(default_factory=KeySet)

    @classmethod
    def begun(cls, replica_id: uuid.UUID, name: str, view: FleetView, at: float) -> ReplicaState:
        """Return the state that a first view makes, which is whole if the view is full."""
        state = cls(replica_id, name, view, at)
        state._change(view)
        return state

    def take(self, view: FleetView, at: float) -> bool:
        """Apply the next view; return whether the sets are whole.

        Where a view is missing before it, its load counts, and the sets stay as they were until the next full one.
        """
        if self.view.seq + 1 != view.seq and not view.full:
            self.whole = False
        self.view, self.at = view, at
        if self.whole or view.full:
            self._change(view)
        return self.whole

    def full_view(self) -> FleetView:
        """Return a full view of this state, as the replica would send it in the place of its last one."""
        view = self.view
        return FleetView(
            seq=view.seq,
            full=True,
            load=view.load,
            ended=view.ended,
            load_seconds=view.load_seconds,
            near_seconds=view.near_seconds,
            token_seconds=view.token_seconds,
            adapters=KeyChange(self.adapters.packed()),
            near=KeyChange(self.near.packed()),
            prefixes=KeyChange(self.prefixes.packed()),
        )

    def _change(self, view: FleetView) -> None:
        if view.full:
            self.adapters = KeySet.of_bytes(view.adapters.added)
            self.near = KeySet.of_bytes(view.near.added)
            self.prefixes = KeySet.of_bytes(view.prefixes.added)
            self.whole = True
        elif self.whole:
            self.adapters = self.adapters.changed(view.adapters.added, view.adapters.removed)
            self.near = self.near.changed(view.near.added, view.near.removed)
            self.prefixes = self.prefixes.changed(view.prefixes.added, view.prefixes.removed)
