"""Everything the double remembers. With a file, it survives a restart: each change is written whole, then renamed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from devstack.private_file import write_private
from devstack.stripe_double.messages import JsonObject

VERSION = 2


@dataclass
class Delivery:
    """One event on its way to the webhook; due at a unix time."""

    event_id: str
    attempts: int
    due: float


@dataclass
class State:
    """Objects by id in order of creation, replayable answers by idempotency key, webhooks still to deliver."""

    file: Path | None = None
    objects: dict[str, JsonObject] = field(default_factory=dict)
    answers: dict[str, JsonObject] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)

    @classmethod
    def load(cls, file: Path | None) -> State:
        """Read the state from `file`; without a file it is empty. Raises ValueError for a file of another kind."""
        if file is None or not file.exists():
            return cls(file)
        saved = json.loads(file.read_bytes())
        if not isinstance(saved, dict) or saved.get("version") != VERSION:
            raise ValueError(f"{file} is not a state file of this Stripe double; move it away and start again")
        return cls(file, saved["objects"], saved["answers"], [Delivery(**delivery) for delivery in saved["deliveries"]])

    def save(self) -> None:
        """Write the whole state to the file; a crash leaves the old text or the new one, never a mixture."""
        if self.file is None:
            return
        saved = {
            "version": VERSION,
            "objects": self.objects,
            "answers": self.answers,
            "deliveries": [vars(delivery) for delivery in self.deliveries],
        }
        write_private(self.file, json.dumps(saved))

    def of_kind(self, kind: str) -> list[JsonObject]:
        """Return the objects of `kind`, newest first."""
        return [found for found in reversed(self.objects.values()) if found["object"] == kind]
