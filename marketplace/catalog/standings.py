"""The standing of each model in the public catalogue: its place, and what the place comes from."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

LAST_PLACE = 2**31 - 1  # of models that have not been ranked yet
UNKNOWN_SCORE = 43.0  # of a model about which nothing is known (marketplace/standing/formula.py)


class Standing(models.Model):
    """One row per public model with a published version, no more and no fewer: triggers of migration 0010 see to it.

    A trigger adds the row with the score of a model about which nothing is known; a task of `marketplace/standing`
    fills it. The numbers of payers and weeks are for buckets alone: a page that showed them would show single tenants.
    """

    model = models.OneToOneField("catalog.Model", on_delete=models.CASCADE, primary_key=True, related_name="standing")
    place = models.PositiveIntegerField(default=LAST_PLACE, db_default=LAST_PLACE)  # 1 is the first
    score = models.FloatField(default=UNKNOWN_SCORE, db_default=UNKNOWN_SCORE)  # 0 to 100
    # Measured accuracy of the default version: the lower Wilson bound, and its rows. Null: not measured.
    quality_low = models.FloatField(null=True)
    quality_rows = models.PositiveIntegerField(null=True)
    # Calls of the last four weeks: answered, and lost by the platform's fault.
    served = models.BigIntegerField(default=0, db_default=0)
    lost = models.BigIntegerField(default=0, db_default=0)
    payers = models.PositiveIntegerField(default=0, db_default=0)  # cards that count
    weeks = models.PositiveIntegerField(default=0, db_default=0)  # in which they paid
    shelf = models.PositiveSmallIntegerField(null=True)  # the place among new models that are shown today
    listed_at = models.DateTimeField(db_default=Now())  # first publication
    # Filters of the catalogue read these, without a look at prices and evaluations: `catalog_list_models` writes them.
    # Taken from the price in force of the default version; a call is one of 500 tokens in and 100 out.
    output_micro_usd_per_mtok = models.BigIntegerField(null=True)
    call_nano_usd = models.BigIntegerField(null=True)
    accuracy_bps = models.PositiveIntegerField(null=True)  # of its newest figure with at least 50 rows
    ttft_p95_ms = models.PositiveIntegerField(null=True)  # of the last four weeks; `marketplace/watch` writes it

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["place", "model"], name="catalog_standing_place"),
            models.Index(fields=["shelf"], condition=models.Q(shelf__isnull=False), name="catalog_standing_shelf"),
        ]
