"""The version that a bare name means: the default, and for a part of the customers one that is rolled out.

One rule holds everywhere: `org/slug` means the default that its creator chose, if it is on sale, and else the newest
version on sale. While a rollout runs, a fixed part of the customers gets its version instead; `org/slug@n` is always n.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.expressions import OrderBy
from django.db.models.functions import Now

MOST_PERCENT = 100
# The rule in SQL, of `catalog_version v` on sale and its `catalog_model m`, and as an ordering of versions.
DEFAULT_FIRST_SQL = "(v.id = m.default_version_id) IS TRUE DESC, v.number DESC"


def default_first() -> tuple[OrderBy, OrderBy]:
    """Return the ordering in which a model's default precedes its other versions on sale."""
    chosen = Case(When(pk=F("model__default_version_id"), then=Value(0)), default=Value(1))
    return OrderBy(chosen), OrderBy(F("number"), descending=True)


class Rollout(models.Model):
    """A version that a part of the customers gets under the bare name, beside the baseline that the others get.

    It counts while its version is on sale. One is open per model; the id mixes the customers anew for each.
    """

    class Outcome(models.TextChoices):
        FINISHED = "finished"  # its version became the default
        ROLLED_BACK = "rolled_back"
        STOPPED = "stopped"  # by the platform: it was significantly worse
        SUPERSEDED = "superseded"  # another version became the default meanwhile
        WITHDRAWN = "withdrawn"  # its version or the baseline left the market

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey("catalog.Model", on_delete=models.CASCADE, related_name="rollouts")
    version = models.ForeignKey("catalog.Version", on_delete=models.CASCADE, related_name="+", db_index=False)
    baseline = models.ForeignKey("catalog.Version", on_delete=models.CASCADE, related_name="+", db_index=False)
    percent = models.PositiveSmallIntegerField()  # of the customers; the last one, once it has ended
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=12, choices=Outcome, default="", db_default="", blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model"], condition=Q(ended_at=None), name="rollout_one_open"),
            models.CheckConstraint(condition=Q(percent__range=(1, MOST_PERCENT)), name="rollout_percent_fits"),
            models.CheckConstraint(condition=~Q(version=F("baseline")), name="rollout_of_another_version"),
        ]


def takes_part(*, rollout_id: uuid.UUID, model_id: uuid.UUID, organization_id: uuid.UUID, percent: int) -> bool:
    """Return whether this customer is among the first `percent` of a rollout: always the same for the same customer.

    Whoever is among the first 10 percent is among the first 50.
    """
    digest = hashlib.sha256(rollout_id.bytes + model_id.bytes + organization_id.bytes).digest()
    return int.from_bytes(digest[:8], "big") * MOST_PERCENT < percent << 64
