"""Writes: a creator's thresholds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from django.db import transaction

from marketplace.accounts.errors import InvalidInput
from marketplace.catalog.models import Model
from marketplace.watch.models import Threshold
from marketplace.watch.rules import METRICS


@transaction.atomic
def set_thresholds(*, model: Model, values: Mapping[str, float | None]) -> None:
    """Set the thresholds of some alarms; None turns one off. Raises InvalidInput, and changes nothing then."""
    for name, value in values.items():
        metric = METRICS.get(name)
        if metric is None:
            raise InvalidInput(f"is no alarm; choose from {', '.join(METRICS)}", field=name)
        if value is not None and not (math.isfinite(value) and 0 < value <= metric.most):
            raise InvalidInput(f"must be above 0 and at most {metric.most:g}", field=name)
        Threshold.objects.update_or_create(model=model, metric=name, defaults={"value": value})
