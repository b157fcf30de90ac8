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
from marketplace.vault.residency import read_residents
from marketplace.vault.selectors import LIVE_SECONDS
from marketplace.vault.sessions import TOKEN_RATE
from routing import KeySet, key_of

MOST = 200  # replicas on the page
MOST_RESIDENT = 100  # adapters that are named for one replica
MOST_SEARCHED = 2_000  # replicas that are looked through for an adapter
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
    resident: tuple[str, ...]  # versions' names, of those whose key is on lease
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
    ids = [boot.pk for boot in boots.values()]
    residents, held = read_residents(ids), _held(ids, now)
    return [_line(name, allowed.get(name), boots.get(name), last.get(name), held, residents, now) for name in names]


def replica_named(name: str) -> FleetLine | None:
    """Return one line of the fleet, or None."""
    return next((line for line in fleet() if line.name == name), None)


def _line(
    name: str,
    enrolled: EnrolledReplica | None,
    boot: Replica | None,
    last: Replica | None,
    held: dict[UUID, dict[str, str]],
    residents: dict[UUID, KeySet],
    now: datetime,
) -> FleetLine:
    leased = held.get(boot.pk, {}) if boot else {}
    keys = residents.get(boot.pk, KeySet()) if boot else KeySet()
    named = sorted(name for digest, name in leased.items() if key_of(digest) in keys)
    return FleetLine(
        name=name,
        state=_state(enrolled, boot, last, now),
        base=enrolled.base_model.name if enrolled else "",
        host=enrolled.host if enrolled else "",
        enrolled=enrolled,
        boot=boot,
        build=str(boot.evidence.get("digest", ""))[:64] if boot else "",
        leases=len(leased),
        resident=tuple(named[:MOST_RESIDENT]),
        resident_count=len(keys),
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


def _held(replica_ids: Iterable[UUID], now: datetime) -> dict[UUID, dict[str, str]]:
    """Return the leases of boots that live: digest → the version's name."""
    rows = (
        Lease.objects.live(now)
        .filter(release__replica__in=list(replica_ids))
        .values_list(
            "release__replica_id",
            "release__digest",
            "release__version__model__organization__slug",
            "release__version__model__slug",
            "release__version__number",
        )
    )
    held: dict[UUID, dict[str, str]] = {}
    for replica_id, digest, organization, slug, number in rows:
        held.setdefault(replica_id, {})[digest] = f"{organization}/{slug}@{number}"
    return held


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
    since = timezone.now() - timedelta(seconds=LIVE_SECONDS)
    live = dict(Replica.objects.filter(gone_at=None, last_seen_at__gte=since).values_list("pk", "name")[:MOST_SEARCHED])
    residents = read_residents(list(live))
    return [
        Adapter(
            f"{name}@{version.number}",
            tuple(sorted(live[one] for one, keys in residents.items() if key in keys)[:MOST]),
        )
        for version in versions
        for key in [key_of(str(version.package_digest))]
    ]
