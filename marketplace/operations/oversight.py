"""Reads for staff across organizations: health of the books, events of guards, evaluations, organizations."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.utils import timezone
from redis.exceptions import RedisError

from billing import selectors as billing
from billing.models import Hold, Incident, Outbox, Period
from billing.selectors import PlatformSummary
from marketplace.accounts.models import Membership, Organization
from marketplace.catalog.models import Model, Version
from marketplace.evals.models import EvalRun
from marketplace.guards.counts import askers_of_attacks
from marketplace.operations.task_times import task_times
from marketplace.protection.models import Customer
from marketplace.watch.models import Block, Hour

logger = logging.getLogger(__name__)

MOST = 100
EVENT_DAYS = 7
GUARD_CODES = {
    "guard_refused": "refused by a guard, or for personal data",
    "too_long_to_guard": "too long for the guard",
    "guard_unavailable": "the guard did not answer",
    "cannot_be_masked": "personal data that cannot be masked",
    "too_long_to_mask": "too long to be masked",
    "extraction_stopped": "stopped as a possible copy",
    "extraction_slowed": "slowed down as a possible copy",
    "extraction_asked": "waits for the creator, as a possible copy",
}
# The checks of the books, by the name of their task.
CHECKS = {
    "billing.tasks.check_ledger": "Books, new charges",
    "billing.tasks.check_ledger_in_full": "Books, in full",
    "billing.tasks.reconcile_stripe": "Stripe's balance",
    "billing.payouts.tasks.check_payouts": "Payouts",
    "marketplace.gateway.tasks.audit_receipts": "Receipts, new ones",
    "marketplace.gateway.tasks.audit_all_receipts": "Receipts, all",
    "marketplace.operations.tasks.probe_components": "Probes of the status page",
}


@dataclass(frozen=True, slots=True)
class Check:
    """A periodic check; `age_seconds` since it last ended well, None where it never did or Valkey does not answer."""

    label: str
    age_seconds: int | None
    failures: int


@dataclass(frozen=True, slots=True)
class LedgerHealth:
    """The books at a glance. Incidents that freeze payouts come first."""

    summary: PlatformSummary
    checks: list[Check]
    incidents: list[Incident]
    freezing: int
    outbox_waiting: int
    outbox_age_seconds: int
    oldest_hold_seconds: int
    closed_through: date | None  # the first day of the last closed month
    tasks_waiting: int | None


@dataclass(frozen=True, slots=True)
class GuardLine:
    """A model's refusals of the last week by their code."""

    name: str
    counts: list[tuple[str, int]]

    @property
    def total(self) -> int:
        return sum(count for _, count in self.counts)


@dataclass(frozen=True, slots=True)
class AskerLine:
    """An organization whose requests the guard of a model refused this month."""

    organization: str
    model: str
    refused: int


@dataclass(frozen=True, slots=True)
class GuardEvents:
    """Guards and protection across the platform; `askers` is None while Valkey is away."""

    models: list[GuardLine]
    askers: list[AskerLine] | None
    copiers: list[Customer]


def ledger_health() -> LedgerHealth:
    """Return the state of the books now."""
    now = timezone.now()
    incidents = list(Incident.objects.filter(resolved_at=None).order_by("opened_at", "pk")[:MOST])
    freezing = sum(incident.kind in Incident.FREEZING for incident in incidents)
    incidents.sort(key=lambda incident: incident.kind not in Incident.FREEZING)
    waiting = Outbox.objects.filter(announced_at=None)
    oldest = waiting.order_by("id").values_list("created_at", flat=True).first()
    held = Hold.objects.filter(state=Hold.State.OPEN).order_by("created_at").values_list("created_at", flat=True)
    checks, queued = _checks()
    return LedgerHealth(
        summary=billing.platform_summary(),
        checks=checks,
        incidents=incidents,
        freezing=freezing,
        outbox_waiting=waiting.count(),
        outbox_age_seconds=_age(oldest, now),
        oldest_hold_seconds=_age(held.first(), now),
        closed_through=Period.objects.order_by("-month").values_list("month", flat=True).first(),
        tasks_waiting=queued,
    )


def guard_events() -> GuardEvents:
    """Return which models refused what, which organizations asked, and who was noticed as a possible copier."""
    copiers = Customer.objects.filter(noticed_at__gte=timezone.now() - timedelta(days=30))
    return GuardEvents(
        models=_refusals(),
        askers=_askers(),
        copiers=list(
            copiers.select_related("model__organization", "organization").order_by("-noticed_at", "pk")[:MOST]
        ),
    )


def evaluation_runs(*, open_only: bool) -> QuerySet[EvalRun]:
    """Return the runs that wait or work, or those that failed, the newest first."""
    states = EvalRun.OPEN if open_only else (EvalRun.State.FAILED,)
    related = ("eval_set__model__organization", "version__model__organization")
    return EvalRun.objects.filter(state__in=states).select_related(*related).order_by("-created_at", "-id")


def organizations(*, query: str = "", suspended: bool = False) -> QuerySet[Organization]:
    """Return the organizations whose name, or a member's address, holds `query`; those of last signed up first."""
    found = Organization.objects.annotate(
        members_count=Count("memberships", distinct=True), models_count=Count("models", distinct=True)
    )
    if suspended:
        found = found.filter(suspended_at__isnull=False)
    text = query.strip()[:200].replace("\x00", "")
    if text:
        member = Membership.objects.filter(organization=OuterRef("pk"), user__email__icontains=text)
        found = found.filter(Q(slug__icontains=text) | Q(name__icontains=text) | Q(Exists(member)))
    return found.order_by("-created_at", "-id")


def _checks() -> tuple[list[Check], int | None]:
    try:
        times = task_times(settings.ENV.valkey_url)
    except RedisError as error:
        logger.warning("times of tasks not read: %s", type(error).__name__)
        return [Check(label, None, 0) for label in CHECKS.values()], None
    now = time.time()
    found = []
    for task, label in CHECKS.items():
        age = max(0, int(now - times.ended[task])) if task in times.ended else None
        failures = sum(count for (name, state), count in times.runs.items() if name == task and state != "SUCCESS")
        found.append(Check(label, age, failures))
    return found, times.waiting


def _age(moment: datetime | None, now: datetime) -> int:
    return max(0, int((now - moment).total_seconds())) if moment else 0


def _refusals() -> list[GuardLine]:
    since = timezone.now() - timedelta(days=EVENT_DAYS)
    found: dict[UUID, dict[str, int]] = {}
    hours = Hour.objects.filter(hour__gte=since).values_list("version_id", "refused")
    blocks = Block.objects.filter(end__gte=since).values_list("version_id", "refused")
    for version_id, refused in (*hours.iterator(), *blocks.iterator()):
        for code, count in refused.items():
            if code in GUARD_CODES:
                counts = found.setdefault(version_id, {})
                counts[code] = counts.get(code, 0) + count
    names = _versions(found)
    lines = [
        GuardLine(
            names.get(version_id, str(version_id)),
            [(GUARD_CODES[code], count) for code, count in sorted(counts.items(), key=lambda one: -one[1])],
        )
        for version_id, counts in found.items()
    ]
    return sorted(lines, key=lambda line: (-line.total, line.name))[:MOST]


def _askers() -> list[AskerLine] | None:
    counts = askers_of_attacks(settings.ENV.valkey_url)
    if counts is None:
        return None
    top = sorted(counts.items(), key=lambda one: -one[1])[:MOST]
    models = Model.objects.filter(pk__in={model for (model, _), _ in top}).select_related("organization")
    names = {model.pk: model.full_name for model in models}
    organizations = {organization for (_, organization), _ in top}
    slugs = dict(Organization.objects.filter(pk__in=organizations).values_list("pk", "slug"))
    return [
        AskerLine(slugs.get(organization, "deleted"), names.get(model, "deleted"), count)
        for (model, organization), count in top
    ]


def _versions(ids: Iterable[UUID]) -> dict[UUID, str]:
    rows = Version.objects.filter(pk__in=list(ids)).select_related("model__organization")
    return {row.pk: f"{row.model.full_name}@{row.number}" for row in rows}
