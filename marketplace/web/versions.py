"""Versions as pages show them: each with its part in what the bare name means, and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Prefetch

from marketplace.catalog import selectors
from marketplace.catalog.models import Evaluation, Model, Price, Rollout, Version
from marketplace.watch.models import ThumbTotal
from marketplace.web.charts import Share

MOST_VERSIONS = 50


@dataclass(frozen=True)
class VersionLine:
    """One version. `percent`: of the customers that get it under the bare name while it is rolled out, or None."""

    version: Version
    is_default: bool
    percent: int | None
    evaluation: Evaluation | None
    thumbs: ThumbTotal | None
    own_price: Price | None  # None: the price of the model

    @property
    def accuracy(self) -> Share | None:
        """Return the measured share of right answers."""
        found = self.evaluation
        return Share(found.correct, found.rows) if found is not None and found.rows else None


def version_lines(model: Model, *, owner: bool) -> list[VersionLine]:
    """Return the versions of a model, newest first: its own organization sees every one, others those ever on sale.

    The measured figure of a version is public while the version is on sale, as its evaluation is.
    """
    shown = selectors.versions_of(model=model, published_only=False) if owner else selectors.history_of(model=model)
    measured = Evaluation.objects.all() if owner else Evaluation.objects.filter(version__state="published")
    evaluations = measured.order_by("version_id", "-id").distinct("version_id")
    prefetch = Prefetch("evaluations", queryset=evaluations, to_attr="newest_evaluations")
    return _lines(model, list(shown.prefetch_related(prefetch)[:MOST_VERSIONS]))


def _lines(model: Model, versions: Sequence[Version]) -> list[VersionLine]:
    default, rollout = selectors.default_version(model=model), selectors.open_rollout(model=model)
    ids = [version.pk for version in versions]
    thumbs = ThumbTotal.objects.in_bulk(ids)
    prices = {price.version_id: price for price in reversed(_own_prices(model))}
    return [
        VersionLine(
            version=version,
            is_default=version == default,
            percent=_percent(version, rollout),
            evaluation=next(iter(getattr(version, "newest_evaluations")), None),  # noqa: B009  set by the prefetch
            thumbs=thumbs.get(version.pk),
            own_price=prices.get(version.pk),
        )
        for version in versions
    ]


def _own_prices(model: Model) -> list[Price]:
    """Return the prices of single versions that have begun, the newest first."""
    return list(selectors.in_force(selectors.prices_of(model=model)).filter(version__isnull=False)[:200])


def _percent(version: Version, rollout: Rollout | None) -> int | None:
    if rollout is None or rollout.version_id != version.pk or version.state != Version.State.PUBLISHED:
        return None
    return rollout.percent
