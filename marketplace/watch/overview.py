"""Every model of a creator at a glance: calls, revenue, errors, thumbs and alarms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db.models import Sum
from django.utils import timezone

from billing.rollups.version_earnings import by_version
from marketplace.accounts.models import Organization
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model, Rollout, Version
from marketplace.watch.models import Alarm, Block, ThumbTotal
from marketplace.watch.rules import METRICS

MOST_MODELS = 100


@dataclass(slots=True)
class ModelLine:
    """One model in the last days.

    predictions, charged, earned: the organization's own books; failures, requests: sums of whole blocks
    up, down: thumbs of all time; firing: the names of alarms
    """

    model: Model
    rollout: Rollout | None = None
    ending: int | None = None  # the version whose end is announced and comes first
    predictions: int = 0
    charged_nano_usd: int = 0
    earned_nano_usd: int = 0
    failures: int = 0
    requests: int = 0
    up: int = 0
    down: int = 0
    firing: list[str] = field(default_factory=list)

    @property
    def error_percent(self) -> float | None:
        """Return the share of requests that failed; None while there are too few to show."""
        return 100 * self.failures / self.requests if self.requests else None

    @property
    def up_percent(self) -> float | None:
        """Return the share of thumbs that point up; None while there are too few to show."""
        thumbs = self.up + self.down
        return 100 * self.up / thumbs if thumbs else None


def overview(organization: Organization, *, days: int) -> list[ModelLine]:
    """Return a line for each model of the organization, the newest 100, those that earned most first."""
    lines = {model.pk: ModelLine(model) for model in catalog.models_of(organization=organization)[:MOST_MODELS]}
    since = timezone.now() - timedelta(days=days)
    for sums in by_version(organization, since=since + timedelta(days=1)):
        line = lines.get(sums.model_id)
        if line is not None:
            line.predictions += sums.predictions
            line.charged_nano_usd += sums.charged_nano_usd
            line.earned_nano_usd += sums.earned_nano_usd
    models_of = dict(Version.objects.filter(model__in=lines).values_list("pk", "model_id"))
    blocks = Block.objects.filter(version_id__in=models_of, end__gt=since).values("version_id")
    for row in blocks.annotate(calls=Sum("calls"), failed=Sum("failures")):
        line = lines[models_of[row["version_id"]]]
        line.failures += row["failed"]
        line.requests += row["calls"] + row["failed"]
    for total in ThumbTotal.objects.filter(pk__in=models_of):
        line = lines[models_of[total.pk]]
        line.up, line.down = line.up + total.up, line.down + total.down
    for model_id, labels in _firing(models_of).items():
        lines[model_id].firing = labels
    _add_plans(lines)
    return sorted(lines.values(), key=lambda line: (-line.earned_nano_usd, line.model.slug))


def _firing(models_of: dict[UUID, UUID]) -> dict[UUID, list[str]]:
    """Return the labels of the alarms that have fired for versions on sale, by model."""
    on_sale = Version.objects.filter(pk__in=models_of, state=Version.State.PUBLISHED)
    found: dict[UUID, list[str]] = defaultdict(list)
    alarms = Alarm.objects.filter(firing=True, version_id__in=on_sale.values("pk")).order_by("metric")
    for alarm in alarms:
        label = METRICS[alarm.metric].label
        if label not in found[models_of[alarm.version_id]]:
            found[models_of[alarm.version_id]].append(label)
    return found


def _add_plans(lines: dict[UUID, ModelLine]) -> None:
    """Add the rollouts that are open and the ends that are announced."""
    models: Iterable[UUID] = list(lines)
    for rollout in Rollout.objects.filter(model__in=models, ended_at=None).select_related("version"):
        lines[rollout.model_id].rollout = rollout
    ending = Version.objects.filter(model__in=models, ends_at__isnull=False, state=Version.State.PUBLISHED)
    for version in ending.order_by("-ends_at"):
        lines[version.model_id].ending = version.number
