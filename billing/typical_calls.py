"""The lengths of a model's usual prediction, from its last ones: they give the price of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median_low
from uuid import UUID

from django.utils import timezone

from billing.models import Usage
from billing.pricing import TokenUsage

LEAST_PREDICTIONS = 20  # fewer say nothing about the next one, and would say something about a single customer
MOST_READ = 5_000  # of the creator's last predictions, by an index
MOST_MEASURED = 500
RECENT = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class TypicalCall:
    """The medians of a version's predictions, and how many were read for them."""

    usage: TokenUsage
    predictions: int


def typical_call(*, creator_organization_id: UUID, version_id: UUID) -> TypicalCall | None:
    """Return the median lengths of customers' last completions of a version, None where there are too few to say.

    The creator's own are left out: evaluations, some of them of the bare base, are no usual prediction.
    """
    since = timezone.now() - RECENT
    recent = Usage.objects.filter(creator_organization_id=creator_organization_id, created_at__gte=since).exclude(
        organization_id=creator_organization_id
    )
    rows = recent.order_by("-created_at").values_list(
        "version_id", "prompt_tokens", "cached_tokens", "completion_tokens"
    )[:MOST_READ]
    measured = [
        (prompt, cached, answer) for version, prompt, cached, answer in rows if version == version_id and answer
    ]
    return _median(measured[:MOST_MEASURED])


def _median(rows: Sequence[Sequence[int]]) -> TypicalCall | None:
    if len(rows) < LEAST_PREDICTIONS:
        return None
    prompt, cached, answer = (median_low(column) for column in zip(*rows, strict=True))
    return TypicalCall(TokenUsage(prompt, min(cached, prompt), answer), len(rows))
