"""Reads: what may be shown of a version in use. Blocks, windows and thumbs that were added together."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from marketplace.catalog.models import Model, Version
from marketplace.watch.alarms import thresholds_of
from marketplace.watch.blocks import LEAST_PAYERS
from marketplace.watch.drift import BASELINE_CALLS
from marketplace.watch.models import Alarm, Baseline, Block, Mark, Payer, ThumbTotal, Window
from marketplace.watch.rules import METRICS, Metric
from marketplace.watch.sums import Sums, quantile
from protocol.contracts import closed_answers

DAYS = (1, 7, 30)
CUSTOMER_STEPS = (LEAST_PAYERS, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)


@dataclass(frozen=True, slots=True)
class AlarmLine:
    """One alarm of a version: its threshold (None: off), and whether it has fired."""

    metric: Metric
    threshold: float | None
    is_firing: bool


@dataclass(frozen=True, slots=True)
class InUse:
    """A version in the last days, in whole blocks.

    labels: the answers of its closed set, in the order of `total.answers`
    baseline: the first calls, which drift is measured against; whole once they are 1,000
    customers: paying organizations of all time, in steps (`customers_at_least`)
    counted_until: everything booked before is in the sums, shown or not
    """

    version: Version
    days: int
    since: datetime
    until: datetime
    blocks: tuple[Block, ...]
    total: Sums
    labels: tuple[str, ...]
    baseline: Baseline
    windows: tuple[Window, ...]
    thumbs: ThumbTotal | None
    alarms: tuple[AlarmLine, ...]
    customers: int
    counted_until: datetime | None

    @property
    def baseline_is_whole(self) -> bool:
        """Return whether drift is measured already."""
        return self.baseline.calls >= BASELINE_CALLS

    @property
    def error_percent(self) -> float | None:
        """Return the share of requests that failed."""
        requests = self.total.calls + self.total.failures
        return 100 * self.total.failures / requests if requests else None

    @property
    def valid_percent(self) -> float | None:
        """Return the share of calls whose answer came to its own end."""
        return 100 * self.total.valid / self.total.calls if self.total.calls else None

    def milliseconds(self, name: str, share: float) -> float | None:
        """Return a quantile of `ttft` or `duration`."""
        return quantile(getattr(self.total, name), share)


def in_use(version: Version, *, days: int, now: datetime | None = None) -> InUse:
    """Return what may be shown of a version: the blocks that end in the last `days`, and what follows from them."""
    until = now or timezone.now()
    since = until - timedelta(days=days)
    blocks = tuple(Block.objects.filter(version_id=version.pk, end__gt=since, end__lte=until).order_by("end"))
    total = Sums()
    for block in blocks:
        total.add(Sums.of(block))
    windows = Window.objects.filter(version_id=version.pk, end__gt=since, end__lte=until).order_by("end")
    return InUse(
        version=version,
        days=days,
        since=since,
        until=until,
        blocks=blocks,
        total=total,
        labels=labels_of(version),
        baseline=Baseline.objects.filter(pk=version.pk).first() or Baseline(version_id=version.pk),
        windows=tuple(windows),
        thumbs=thumbs_of(version),
        alarms=alarms_of(version.model, version.pk),
        customers=customers_at_least([version.pk], creator_id=version.model.organization_id),
        counted_until=Mark.objects.filter(pk=1).values_list("complete_at", flat=True).first(),
    )


def thumbs_of(version: Version | None) -> ThumbTotal | None:
    """Return the thumbs of a version that may be shown to everybody; None, where there are too few."""
    return None if version is None else ThumbTotal.objects.filter(pk=version.pk).first()


def customers_at_least(version_ids: Sequence[UUID], *, creator_id: UUID) -> int:
    """Return how many organizations paid for any of the versions, in steps: 0 says that there are fewer than 3.

    A step tells nothing of a single customer who comes or leaves, but for the one who reaches it.
    """
    payers = Payer.objects.filter(version_id__in=version_ids).exclude(organization_id=creator_id)
    reached = bisect_right(CUSTOMER_STEPS, payers.values("organization_id").distinct().count())
    return CUSTOMER_STEPS[reached - 1] if reached else 0


def labels_of(version: Version) -> tuple[str, ...]:
    """Return the answers of the version's closed set in words; empty, where it has none."""
    return tuple(_words(json.loads(answer)) for answer in closed_answers((version.contract or {}).get("output_schema")))


def alarms_of(model: Model, version_id: UUID | None) -> tuple[AlarmLine, ...]:
    """Return the alarms of a model, with their state for one version."""
    firing = set[str]()
    if version_id is not None:
        firing.update(Alarm.objects.filter(version_id=version_id, firing=True).values_list("metric", flat=True))
    thresholds = thresholds_of(model)
    return tuple(AlarmLine(metric, thresholds[name], name in firing) for name, metric in METRICS.items())


def _words(answer: Any) -> str:
    """Return an answer without the braces that all of them have."""
    values = list(answer.values()) if isinstance(answer, dict) else [answer]
    return " · ".join(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
