"""Pools as staff see them: what each has and does, what is asked of it, and what its fleet wants.

Replicas of one fleet credential are a pool; plain replicas that serve the same checkpoint are one, too. Totals are over
all replicas that live, however many the page of single replicas shows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F
from django.db.models.functions import JSONObject
from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from marketplace.catalog.models import BaseModel
from marketplace.vault.models import EnrolledReplica, FleetCredential, Replica
from marketplace.vault.pool_demand import CLASSES, Demands, KnownPool, read_demands, read_pools
from marketplace.vault.selectors import LIVE_SECONDS
from marketplace.vault.sessions import TOKEN_RATE
from protocol.demand import PoolDemand
from routing import CLASS_TARGETS, wait_of_calls

logger = logging.getLogger(__name__)

STATES = ("healthy", "short", "starting", "asleep", "late", "blind", "down")
HEALTHY = ("healthy", "short", "starting", "asleep")
# The figures of a heartbeat that pools add up; without the lists of adapters, which may be long.
_FIGURES = ("running", "waiting", "seats", "kv_blocks_used", "kv_blocks_total", TOKEN_RATE, "waits")
_MOST = 5_000


@dataclass(frozen=True, slots=True)
class Boot:
    """What a pool needs of one replica that lives. waits: seconds by class, as it predicts them."""

    name: str
    base: str
    build: str
    is_silent: bool
    is_drained: bool
    figures: Mapping[str, Any]

    def figure(self, name: str) -> float:
        """Return a figure of the last heartbeat; a replica may send any JSON."""
        found = self.figures.get(name)
        return float(found) if isinstance(found, (int, float)) and not isinstance(found, bool) and found >= 0 else 0.0

    @property
    def waits(self) -> tuple[float, ...]:
        """Return the predicted waits of the three classes, empty where the replica tells none."""
        found = self.figures.get("waits")
        if not isinstance(found, list) or len(found) != len(CLASSES):
            return ()
        return tuple(float(one) if isinstance(one, (int, float)) and one >= 0 else 0.0 for one in found)


@dataclass(frozen=True, slots=True)
class ClassLine:
    """One latency class of a pool. wait_s: what 95 % of calls wait less than, None where no replica tells."""

    name: str
    target_s: float
    wait_s: float | None
    arrivals: float
    refused: float

    @property
    def is_late(self) -> bool:
        """Return whether calls wait longer than their class may."""
        return self.wait_s is not None and self.wait_s > self.target_s


@dataclass(frozen=True, slots=True)
class PoolLine:
    """One pool. known: the report of its fleet, None for plain replicas; demand: None while the counters are away."""

    name: str
    base: str
    boots: tuple[Boot, ...]
    known: KnownPool | None
    demand: PoolDemand | None
    allowed: int | None = None  # replicas that its credential allows at once
    takers: tuple[Boot, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "takers", tuple(b for b in self.boots if not b.is_silent and not b.is_drained))

    @property
    def live(self) -> int:
        return len(self.takers)

    @property
    def draining(self) -> int:
        return sum(boot.is_drained and not boot.is_silent for boot in self.boots)

    @property
    def silent(self) -> int:
        return sum(boot.is_silent for boot in self.boots)

    @property
    def seats(self) -> int:
        return self._sum("seats")

    @property
    def running(self) -> int:
        return self._sum("running")

    @property
    def waiting(self) -> int:
        return self._sum("waiting")

    @property
    def load_percent(self) -> int | None:
        """Return the calls of the pool in percent of its seats, those that wait too."""
        return 100 * (self.running + self.waiting) // self.seats if self.seats else None

    @property
    def running_percent(self) -> int:
        """Return the running calls in percent of the seats, at most 100: the length of a bar."""
        return min(100, 100 * self.running // self.seats) if self.seats else 0

    @property
    def waiting_percent(self) -> int:
        """Return the queue in percent of the seats, at most 100."""
        return min(100, 100 * self.waiting // self.seats) if self.seats else 0

    @property
    def kv_percent(self) -> int | None:
        total = self._sum("kv_blocks_total")
        return 100 * self._sum("kv_blocks_used") // total if total else None

    @property
    def tokens_per_second(self) -> float:
        return sum(boot.figure(TOKEN_RATE) for boot in self.takers)

    @property
    def builds(self) -> tuple[str, ...]:
        """Return the builds of the program that run here; more than one during an update."""
        return tuple(sorted({boot.build for boot in self.boots if boot.build}))

    @property
    def classes(self) -> tuple[ClassLine, ...]:
        """Return the latency classes with their waits and what is asked of each."""
        told = [boot.waits for boot in self.takers if boot.waits]
        asked = self.demand.classes if self.demand else {}
        return tuple(
            ClassLine(
                name,
                CLASS_TARGETS[place],
                wait_of_calls([waits[place] for waits in told]),
                asked[name].arrivals if name in asked else 0.0,
                asked[name].refused if name in asked else 0.0,
            )
            for place, name in enumerate(CLASSES)
        )

    @property
    def state(self) -> str:
        """Return the pool's state, one of STATES.

        short: fewer take calls than its fleet wants; starting: none does yet; asleep: scaled to zero; late: calls wait
        too long; blind: its fleet's controller fell silent; down: no replica takes calls
        """
        wanted = self.known.report.wanted if self.known and self.known.is_fresh else None
        if not self.live:
            return "down" if wanted is None else "starting" if wanted else "asleep"
        if any(one.is_late for one in self.classes):
            return "late"
        if self.known is not None and wanted is None:
            return "blind"
        return "short" if wanted is not None and self.live < wanted else "healthy"

    @property
    def is_healthy(self) -> bool:
        """Return whether nothing needs a person."""
        return self.state in HEALTHY

    def _sum(self, name: str) -> int:
        return int(sum(boot.figure(name) for boot in self.takers))


def pools() -> list[PoolLine]:
    """Return every pool by name: those of fleets, and one for each checkpoint that plain replicas serve."""
    now = timezone.now()
    known, demands = _told()
    enrolled = dict(EnrolledReplica.objects.filter(revoked_at=None).values_list("name", "fleet_id"))
    boots = _boots(now)
    bases = dict(BaseModel.objects.values_list("fingerprint", "name"))
    lines = []
    for fleet in FleetCredential.objects.filter(revoked_at=None).select_related("base_model").order_by("pool"):
        base = fleet.base_model
        lines.append(
            PoolLine(
                fleet.pool,
                base.name,
                tuple(boot for boot in boots if enrolled.get(boot.name) == fleet.pool),
                known.get(fleet.pool),
                demands.of(base.fingerprint) if demands else None,
                fleet.replicas,
            )
        )
    plain = [boot for boot in boots if enrolled.get(boot.name) is None]
    for fingerprint in sorted({boot.base for boot in plain}, key=lambda one: bases.get(one, one)):
        members = tuple(boot for boot in plain if boot.base == fingerprint)
        name = bases.get(fingerprint, fingerprint[:12])
        lines.append(PoolLine(name, name, members, None, demands.of(fingerprint) if demands else None))
    return lines


def _boots(now: datetime) -> list[Boot]:
    drained = set(EnrolledReplica.objects.filter(drained_at__isnull=False).values_list("name", flat=True))
    silent = now - timedelta(seconds=LIVE_SECONDS)
    rows = (
        Replica.objects.filter(gone_at=None)
        .annotate(
            build=F("evidence__digest"),
            figures=JSONObject(**{name: F(f"stats__{name}") for name in _FIGURES}, draining=F("stats__draining")),
        )
        .order_by("name", "registered_at")
        .values_list("name", "base_fingerprint", "build", "last_seen_at", "figures")[:_MOST]
    )
    newest: dict[str, Boot] = {}
    for name, base, build, seen, figures in rows:
        drains = name in drained or figures.get("draining") is True
        newest[name] = Boot(name, base, str(build or "")[:64], seen < silent, drains, figures)
    return list(newest.values())


def _told() -> tuple[dict[str, KnownPool], Demands | None]:
    """Return what fleets report and what callers ask; no reports and None while Valkey is away."""
    try:
        with Redis.from_url(settings.ENV.valkey_url, socket_timeout=1, socket_connect_timeout=1) as valkey:
            return {one.report.pool: one for one in read_pools(valkey)}, read_demands(valkey)
    except RedisError as error:
        logger.warning("the demand of pools is not known: %s", type(error).__name__)
        return {}, None
