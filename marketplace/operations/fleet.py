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
MOST_SEARCHED = 20_000  # leases that are looked through for a model
MOST_VERSIONS = 20  # of one model, when staff ask where its adapters are


@dataclass(frozen=True, slots=True)
class FleetLine:
    """One replica by its name: what staff allowed, and its boot, if one lives."""

    name: str
    state: str  # live, draining, drained, silent, retired, lost, waiting (for its credential to be used), revoked
    base: str
    host: str
    enrolled: EnrolledReplica | None  # None: a boot that was registered before there were enrolments
    boot: Replica | None
    build: str
    leases: int
    resident: tuple[str, ...]  # versions' names
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
    away = Replica.objects.filter(name__in=allowed.keys() - boots.keys()).order_by("name", "-registered_at")
    last = {boot.name: boot for boot in away.distinct("name")}
    held = _held([boot.pk for boot in boots.values()], now)
    return [_line(name, allowed.get(name), boots.get(name), last.get(name), held, now) for name in names]


def replica_named(name: str) -> FleetLine | None:
    """Return one line of the fleet, or None."""
    return next((line for line in fleet() if line.name == name), None)


def _line(
    name: str,
    enrolled: EnrolledReplica | None,
    boot: Replica | None,
    last: Replica | None,
    held: dict[UUID, list[str]],
    now: datetime,
) -> FleetLine:
    leased = held.get(boot.pk, []) if boot else []
    return FleetLine(
        name=name,
        state=_state(enrolled, boot, last, now),
        base=enrolled.base_model.name if enrolled else "",
        host=enrolled.host if enrolled else "",
        enrolled=enrolled,
        boot=boot,
        build=str(boot.evidence.get("digest", ""))[:64] if boot else "",
        leases=len(leased),
        resident=tuple(leased[:MOST_RESIDENT]),
        resident_count=len(leased),
    )


def _state(enrolled: EnrolledReplica | None, boot: Replica | None, last: Replica | None, now: datetime) -> str:
    if enrolled is not None and enrolled.revoked_at is not None:
        return "revoked"
    if enrolled is not None and enrolled.identity_public_key is None:
        return "waiting"
    if boot is None and last is not None and last.retired_at is not None:
        return "retired"
    if boot is None and last is not None and last.lost_at is not None:
        return "lost"
    if boot is None or boot.last_seen_at < now - timedelta(seconds=LIVE_SECONDS):
        return "silent"
    if enrolled is None or enrolled.drained_at is None:
        return "live"
    busy: Any = boot.stats.get("running"), boot.stats.get("waiting")
    return "draining" if any(type(count) is int and count > 0 for count in busy) else "drained"


def _held(replica_ids: Iterable[UUID], now: datetime) -> dict[UUID, list[str]]:
    """Return the versions' names of each boot's live leases: a replica has a lease on what is in its memory, and on
    nothing else for long."""
    rows = (
        Lease.objects.live(now)
        .filter(release__replica__in=list(replica_ids))
        .values_list(
            "release__replica_id",
            "release__version__model__organization__slug",
            "release__version__model__slug",
            "release__version__number",
        )
    )
    held: dict[UUID, set[str]] = {}
    for replica_id, organization, slug, number in rows:
        held.setdefault(replica_id, set()).add(f"{organization}/{slug}@{number}")
    return {replica_id: sorted(names) for replica_id, names in held.items()}


@dataclass(frozen=True, slots=True)
class Adapter:
    """A version whose adapter may be in memory, and the replicas that have it there, by name."""

    name: str
    replicas: tuple[str, ...]


def adapters_of(model: str) -> list[Adapter] | None:
    """Return the versions of a model, newest first, with the replicas where each is resident; at most 20.

    model: `organization/slug`, with `@number` for one version. None: there is no such model.
    """
    name, _, number = model.strip().partition("@")
    organization, _, slug = name.partition("/")
    found = Version.objects.filter(model__organization__slug=organization, model__slug=slug)
    if number:
        found = found.filter(number=int(number)) if number.isdecimal() and len(number) <= 9 else found.none()
    versions = list(found.exclude(package_digest=None).order_by("-number")[:MOST_VERSIONS])
    if not versions:
        return None
    live = Lease.objects.live(timezone.now()).filter(release__version__in=versions, release__replica__gone_at=None)
    where: dict[UUID, set[str]] = {}
    for version_id, replica in live.values_list("release__version_id", "release__replica__name")[:MOST_SEARCHED]:
        where.setdefault(version_id, set()).add(replica)
    return [
        Adapter(f"{name}@{version.number}", tuple(sorted(where.get(version.pk, ()))[:MOST])) for version in versions
    ]
