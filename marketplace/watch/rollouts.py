"""Both versions of a rollout beside each other, and the end of a rollout whose version is significantly worse.

They are compared by sums of whole blocks (`blocks`) since the rollout began, so a comparison tells no more of a
customer than the page of either version.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from marketplace.alerts.services import tell
from marketplace.catalog.intervals import wilson
from marketplace.catalog.models import Rollout, Version
from marketplace.catalog.services import stop_rollout
from marketplace.watch.models import Block, ThumbTotal
from marketplace.watch.sums import Sums, quantile


@dataclass(frozen=True, slots=True)
class Side:
    """One version of a rollout since its beginning; figures are None where nothing may be shown yet.

    thumbs: of all its time, for they are added many at a time
    """

    version: Version
    sums: Sums
    thumbs: ThumbTotal | None

    @property
    def requests(self) -> int:
        """Return the requests that were answered or failed."""
        return self.sums.calls + self.sums.failures

    @property
    def error_percent(self) -> float | None:
        """Return the share of requests that failed."""
        return 100 * self.sums.failures / self.requests if self.requests else None

    @property
    def valid_percent(self) -> float | None:
        """Return the share of calls whose answer came to its own end."""
        return 100 * self.sums.valid / self.sums.calls if self.sums.calls else None

    @property
    def p95_ms(self) -> float | None:
        """Return the time within which 95 of 100 answers were done."""
        return quantile(self.sums.duration, 0.95)

    @property
    def nano_usd_per_call(self) -> int | None:
        """Return what a call cost its customer on average."""
        return self.sums.spent_nano_usd // self.sums.calls if self.sums.calls else None


def compare(rollout: Rollout) -> tuple[Side, Side]:
    """Return the baseline and the version that is rolled out, since both were called under one name."""
    since = rollout.started_at
    if rollout.version.published_at is not None:
        since = max(since, rollout.version.published_at)
    return _side(rollout.baseline, since, rollout.ended_at), _side(rollout.version, since, rollout.ended_at)


def complaint(baseline: Side, version: Side) -> str | None:
    """Return how the version is worse than the baseline, beyond chance; None if it is not.

    Worse is a share whose 95 % interval lies wholly on the wrong side of the baseline's: of requests that fail, and,
    where both promise a form of the answer, of answers that come to their own end.
    """
    failing, failed = (wilson(side.sums.failures, side.requests) for side in (version, baseline))
    if failing[0] > failed[1]:
        return f"{version.error_percent:.3g} % of its requests fail, {baseline.error_percent:.3g} % of the baseline's"
    if not all(_promises_whole(side.version) for side in (baseline, version)):
        return None
    whole, was_whole = (wilson(side.sums.valid, side.sums.calls) for side in (version, baseline))
    if whole[1] < was_whole[0]:
        return (
            f"{version.valid_percent:.3g} % of its answers are whole, {baseline.valid_percent:.3g} % of the baseline's"
        )
    return None


def stop_worse_rollouts() -> int:
    """End the rollouts whose version is worse, and tell their creators; return how many."""
    stopped = 0
    rollouts = Rollout.objects.filter(ended_at=None, version__state=Version.State.PUBLISHED)
    for rollout in rollouts.select_related("version__model__organization", "baseline__model", "model"):
        found = complaint(*compare(rollout))
        if found is not None and stop_rollout(rollout=rollout):
            _tell(rollout, found)
            stopped += 1
    return stopped


def _side(version: Version, since: datetime, until: datetime | None) -> Side:
    sums = Sums()
    blocks = Block.objects.filter(version_id=version.pk, start__gte=since)
    for block in blocks if until is None else blocks.filter(end__lte=until):
        sums.add(Sums.of(block))
    return Side(version, sums, ThumbTotal.objects.filter(pk=version.pk).first())


def _promises_whole(version: Version) -> bool:
    return bool(version.contract and version.contract.get("output_schema"))


def _tell(rollout: Rollout, found: str) -> None:
    model, number = rollout.version.model, rollout.version.number
    tell(
        organization_id=model.organization_id,
        kind="model.rollout",
        once=str(rollout.pk),
        subject=f"{model.full_name}: the rollout of version {number} was stopped",
        text=(
            f"{model.full_name}@{number}: {found}. More than chance explains, so every caller of {model.full_name} "
            f"gets version {rollout.baseline.number} again. The version stays on sale under its number.\n\n"
            f"{settings.ENV.public_url}/dashboard/models/{model.slug}/versions/{number}\n"
        ),
        data={
            "event": "stopped",
            "model": model.full_name,
            "version": number,
            "baseline": rollout.baseline.number,
            "percent": rollout.percent,
            "reason": found,
        },
    )
