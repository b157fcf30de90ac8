"""Everything the double remembers. With a file, it survives a restart: each change is written whole, then renamed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from devstack.stripe_double.messages import JsonObject

VERSION = 1


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
        """The state in `file`, or an empty one if there is none yet. Raises ValueError for a file of another kind."""
        if file is None or not file.exists():
            return cls(file)
        saved = json.loads(file.read_bytes())
        if not isinstance(saved, dict) or saved.get("version") != VERSION:
            raise ValueError(f"{file} is not a state file of this Stripe double; move it away and start again")
        return cls(file, saved["objects"], saved["answers"], [Delivery(**delivery) for delivery in saved["deliveries"]])

    def save(self) -> None:
        """Make the file say what memory says; a crash leaves the old one or the new one, never a mixture."""
        if self.file is None:
            return
        saved = {
            "version": VERSION,
            "objects": self.objects,
            "answers": self.answers,
            "deliveries": [vars(delivery) for delivery in self.deliveries],
        }
        temporary = self.file.with_name(self.file.name + ".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(saved, stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self.file)

    def of_kind(self, kind: str) -> list[JsonObject]:
        """Objects whose `object` is `kind`, newest first."""
        return [found for found in reversed(self.objects.values()) if found["object"] == kind]
