"""The control API's remarks on releases of keys: the replica's name, the lease, who confirmed. No hash covers them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from creator_cli.reading import Reader
from creator_cli.records import time_of
from protocol.encoding import encode_base64url


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a model's key, as the custody list shows it; times are UTC."""

    sequence: int
    released_at: datetime
    version: int
    purpose: str
    replica: str
    entry_hash: bytes
    lease_expires_at: datetime
    lease_revoked_at: datetime | None
    lease_confirmed_at: datetime | None

    @classmethod
    def parse(cls, value: Any) -> Release:
        """Read one of `GET models/…/custody`."""
        reader = Reader(value, "release")
        return cls(
            sequence=reader.integer("sequence"),
            released_at=time_of(reader.integer("released_at")),
            version=reader.integer("version"),
            purpose=reader.text("purpose"),
            replica=reader.text("replica"),
            entry_hash=reader.data("entry_hash"),
            lease_expires_at=reader.time("lease_expires_at"),
            lease_revoked_at=reader.time("lease_revoked_at") if reader.has("lease_revoked_at") else None,
            lease_confirmed_at=reader.time("lease_confirmed_at") if reader.has("lease_confirmed_at") else None,
        )

    def lease_state(self) -> str:
        """Say whether the replica confirmed that the key is gone, or when its lease ends."""
        if self.lease_confirmed_at is not None:
            return f"gone {self.lease_confirmed_at:%H:%M:%S}"
        over = self.lease_expires_at <= datetime.now(UTC)
        return f"{'ended' if over else 'ends'} {self.lease_expires_at:%H:%M:%S}"

    def to_json(self) -> dict[str, Any]:
        """Return the platform's remarks on this release: they are in no hash."""
        times = {
            "lease_expires_at": self.lease_expires_at,
            "lease_revoked_at": self.lease_revoked_at,
            "lease_confirmed_at": self.lease_confirmed_at,
        }
        return {
            "entry_hash": encode_base64url(self.entry_hash),
            "replica": self.replica,
            **{name: time.isoformat() if time else None for name, time in times.items()},
        }


@dataclass(frozen=True, slots=True)
class Holder:
    """A replica that was lent the key of a version; `confirmed` tells whether it said that the key is gone."""

    replica: str
    replica_id: UUID
    lease_ends_at: datetime
    lease_over: bool
    confirmed: bool

    @classmethod
    def parse(cls, value: Any) -> Holder:
        """Read one of `GET versions/…/holders`."""
        reader = Reader(value, "holder")
        return cls(
            replica=reader.text("replica"),
            replica_id=reader.uuid("replica_id"),
            lease_ends_at=reader.time("lease_ends_at"),
            lease_over=reader.flag("lease_over"),
            confirmed=reader.flag("confirmed"),
        )

    def __str__(self) -> str:
        """Name the replica and when its lease ends."""
        return f"{self.replica} (its lease {'ended' if self.lease_over else 'ends'} {self.lease_ends_at:%H:%M:%S} UTC)"

    def to_json(self) -> dict[str, Any]:
        """Return the holder as `--json` shows it."""
        return {**asdict(self), "replica_id": str(self.replica_id), "lease_ends_at": self.lease_ends_at.isoformat()}
