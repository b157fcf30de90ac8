"""Reads of the fleet, for staff: which replicas may serve, which do, what they hold, and how they do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.vault.models import EnrolledReplica, Lease, Replica
from marketplace.vault.selectors import LIVE_SECONDS
from marketplace.vault.sessions import TOKEN_RATE

MOST = 200  # replicas on the page
MOST_RESIDENT = 100  # adapters that are named for one replica


@dataclass(frozen=True, slots=True)
class FleetLine:
    """One replica by its name: what staff allowed, and its boot, if one lives."""

    name: str
    state: str  # live, draining, drained, silent, waiting (for its credential to be used), revoked
    base: str
    host: str
    enrolled: EnrolledReplica | None  # None: a boot that was registered before there were enrolments
    boot: Replica | None
    build: str
    leases: int
    resident: tuple[str, ...]  # models' names, or digests that are no version's
    resident_count: int

    @property
    def running(self) -> int:
        return self._figure("running")

    @property
    def waiting(self) -> int:
        return self._figure("waiting")

    @property
    def tokens_per_second(self) -> float:
        found = self.boot.stats.get(TOKEN_RATE) if self.boot else None
        return float(found) if isinstance(found, (int, float)) else 0.0

    @property
    def cache_hit_percent(self) -> int | None:
        """Return the share of prompt tokens found in the prefix cache since the boot; None before the first."""
        looked_up = self._figure("prefix_lookup_tokens")
        return 100 * self._figure("prefix_hit_tokens") // looked_up if looked_up else None

    @property
    def kv_percent(self) -> int | None:
        total = self._figure("kv_blocks_total")
        return 100 * self._figure("kv_blocks_used") // total if total else None

    @property
    def last_seen_at(self) -> datetime | None:
        return self.boot.last_seen_at if self.boot else None

    @property
    def replica_id(self) -> UUID | None:
        return self.boot.pk if self.boot else None

    @property
    def is_drained(self) -> bool:
        return self.enrolled is not None and self.enrolled.drained_at is not None

    def _figure(self, name: str) -> int:
        """Return a figure of the last heartbeat; a replica may send any JSON."""
        found = self.boot.stats.get(name) if self.boot else None
        return found if type(found) is int and found >= 0 else 0


def fleet() -> list[FleetLine]:
    """Return every replica that staff allowed, and every boot that is not gone, by name; at most 200."""
    now = timezone.now()
    allowed = {row.name: row for row in EnrolledReplica.objects.select_related("base_model").order_by("name")[:MOST]}
    boots: dict[str, Replica] = {}
    for boot in Replica.objects.filter(gone_at=None).order_by("registered_at")[: 2 * MOST]:
        boots[boot.name] = boot
    names = sorted({*allowed, *boots})[:MOST]
    held = _held([boot.pk for boot in boots.values()], now)
    known = _names(digest for digests in held.values() for digest in digests)
    return [_line(name, allowed.get(name), boots.get(name), held, known, now) for name in names]


def replica_named(name: str) -> FleetLine | None:
    """Return one line of the fleet, or None."""
    return next((line for line in fleet() if line.name == name), None)


def _line(
    name: str,
    enrolled: EnrolledReplica | None,
    boot: Replica | None,
    held: dict[UUID, list[str]],
    known: dict[str, str],
    now: datetime,
) -> FleetLine:
    leased = held.get(boot.pk, []) if boot else []
    digests = sorted(set(leased))
    return FleetLine(
        name=name,
        state=_state(enrolled, boot, now),
        base=enrolled.base_model.name if enrolled else "",
        host=enrolled.host if enrolled else "",
        enrolled=enrolled,
        boot=boot,
        build=str(boot.evidence.get("digest", ""))[:64] if boot else "",
        leases=len(leased),
        resident=tuple(known.get(digest, digest[:12]) for digest in digests[:MOST_RESIDENT]),
        resident_count=len(digests),
    )


def _state(enrolled: EnrolledReplica | None, boot: Replica | None, now: datetime) -> str:
    if enrolled is not None and enrolled.revoked_at is not None:
        return "revoked"
    if enrolled is not None and enrolled.identity_public_key is None:
        return "waiting"
    if boot is None or boot.last_seen_at < now - timedelta(seconds=LIVE_SECONDS):
        return "silent"
    if enrolled is None or enrolled.drained_at is None:
        return "live"
    busy: Any = boot.stats.get("running"), boot.stats.get("waiting")
    return "draining" if any(type(count) is int and count > 0 for count in busy) else "drained"


def _held(replica_ids: Iterable[UUID], now: datetime) -> dict[UUID, list[str]]:
    """Return the digests of each boot's live leases: a replica has a lease on what is in its memory, and on nothing
    else for long."""
    held: dict[UUID, list[str]] = {}
    live = Lease.objects.live(now).filter(release__replica__in=list(replica_ids))
    for replica_id, digest in live.values_list("release__replica_id", "release__digest"):
        held.setdefault(replica_id, []).append(digest)
    return held


def _names(digests: Iterable[str]) -> dict[str, str]:
    rows = Version.objects.filter(package_digest__in=set(digests)).select_related("model__organization")
    return {str(row.package_digest): f"{row.model.full_name}@{row.number}" for row in rows}
