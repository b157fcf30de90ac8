"""Reads of the status page: how each component does now and did for 90 days, and what staff said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from django.db.models import Q, QuerySet
from django.utils import timezone

from marketplace.operations.models import Component, Incident, Probe, ProbeDay

DAYS = 90
FRESH = timedelta(minutes=5)  # an older probe says nothing about now
LOOKED_AT = 5  # the latest probes, by which the state is judged
SHOWN = timedelta(days=14)  # for which resolved incidents stay on the page
MOST_INCIDENTS = 50

_WORDS = {
    "working": "Working",
    "degraded": "Slow or failing in part",
    "down": "Not working",
    "maintenance": "Planned maintenance",
    "unknown": "Not measured",
}
_WORST = ("down", "degraded", "maintenance", "unknown", "working")


@dataclass(frozen=True, slots=True)
class Day:
    """One day of a component; `percent` is None where nothing was measured."""

    day: date
    percent: float | None

    @property
    def tone(self) -> str:
        """Return the class that colours the bar."""
        if self.percent is None:
            return "none"
        return "good" if self.percent >= 99.5 else "warn" if self.percent >= 95 else "bad"

    @property
    def words(self) -> str:
        return "not measured" if self.percent is None else f"{self.percent:.2f} %"


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """A component now, and its last 90 days, the oldest first."""

    name: str
    label: str
    state: str
    days: tuple[Day, ...]
    percent: float | None  # of all probes of these days

    @property
    def state_words(self) -> str:
        return _WORDS[self.state]

    @property
    def measured(self) -> list[Day]:
        """Return the days of the table, the newest first, without those that nobody measured."""
        return [day for day in reversed(self.days) if day.percent is not None]


@dataclass(frozen=True, slots=True)
class Status:
    """The whole page."""

    at: datetime
    components: tuple[ComponentStatus, ...]
    current: tuple[Incident, ...]
    planned: tuple[Incident, ...]
    past: tuple[Incident, ...]

    @property
    def state(self) -> str:
        """Return the worst state of a component."""
        states = {component.state for component in self.components}
        return next(state for state in _WORST if state in states)

    @property
    def words(self) -> str:
        return "Everything works" if self.state == "working" else _WORDS[self.state]


def status() -> Status:
    """Return the page as it is now, in five queries."""
    now = timezone.now()
    incidents = list(
        Incident.objects.filter(Q(resolved_at=None) | Q(resolved_at__gte=now - SHOWN))
        .prefetch_related("updates")
        .order_by("-starts_at", "-id")[:MOST_INCIDENTS]
    )
    current = [one for one in incidents if one.resolved_at is None and one.starts_at <= now]
    probes = _latest(now)
    days = _days(now.date())
    return Status(
        at=now,
        components=tuple(
            ComponentStatus(
                name=component.value,
                label=str(component.label),
                state=_state(probes[component], [one for one in current if component in one.components]),
                days=tuple(_day(day, days.get((component, day))) for day in _dates(now.date())),
                percent=_percent([counts for (name, _), counts in days.items() if name == component]),
            )
            for component in Component
        ),
        current=tuple(current),
        planned=tuple(reversed([one for one in incidents if one.resolved_at is None and one.starts_at > now])),
        past=tuple(one for one in incidents if one.resolved_at is not None),
    )


def feed_incidents() -> QuerySet[Incident]:
    """Return the incidents of the feed, the newest first, with their updates."""
    return Incident.objects.prefetch_related("updates").order_by("-starts_at", "-id")[:MOST_INCIDENTS]


def failed_probes() -> QuerySet[Probe]:
    """Return the bad probes of the last two days, the newest first. For staff only."""
    return Probe.objects.filter(ok=False).order_by("-at", "-id")


def _latest(now: datetime) -> dict[str, list[bool]]:
    """Return whether the latest probes of each component were good, the newest first."""
    found: dict[str, list[bool]] = {component: [] for component in Component}
    rows = Probe.objects.filter(at__gt=now - FRESH).order_by("-at", "-id").values_list("component", "ok")
    for name, ok in rows[: 10 * LOOKED_AT * len(Component)]:
        if name in found and len(found[name]) < LOOKED_AT:
            found[name].append(ok)
    return found


def _state(latest: Sequence[bool], incidents: Sequence[Incident]) -> str:
    """Return the worse of what probes saw and staff say. One bad probe alone is no outage."""
    said = {"minor": "degraded", "major": "down", "maintenance": "maintenance"}
    states = {said[incident.kind] for incident in incidents}
    if not latest:
        states.add("unknown")
    elif not any(latest[:2]) and len(latest) > 1:
        states.add("down")
    else:
        states.add("working" if all(latest) else "degraded")
    return next(state for state in _WORST if state in states)


def _dates(last: date) -> list[date]:
    return [last - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]


def _days(last: date) -> dict[tuple[str, date], tuple[int, int]]:
    rows = ProbeDay.objects.filter(day__gt=last - timedelta(days=DAYS))
    return {(row.component, row.day): (row.good, row.bad) for row in rows}


def _day(day: date, counts: tuple[int, int] | None) -> Day:
    return Day(day, None if counts is None else _percent([counts]))


def _percent(counts: Sequence[tuple[int, int]]) -> float | None:
    """Return the share of good probes, rounded down: 99.996 % is not 100 %."""
    good, bad = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    return (10_000 * good // (good + bad)) / 100 if good + bad else None
