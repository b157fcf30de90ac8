"""Sums of a model in use, what is shown of them, the state of its alarms, and thumbs.

Ids are plain, as in the books: a foreign key would lock a version for each sum. `Hour` and `HourCaller` are shown to
nobody; a `Block` is shown.
"""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from marketplace.catalog.models import Model


class Settled(models.Model):
    """A prediction that the sums of usage have counted, and those of this app have not: a trigger writes it."""

    id = models.BigAutoField(primary_key=True)
    prediction_id = models.UUIDField()
    settled_at = models.DateTimeField()  # the usage row's time


class Mark(models.Model):
    """The mark up to which there are sums. One row, locked while they change.

    complete_at: everything that was committed before is in them
    refusals: the last batch of refusals that was counted
    """

    id = models.SmallIntegerField(primary_key=True)
    complete_at = models.DateTimeField(null=True)
    refusals = models.UUIDField(null=True)


class _Sums(models.Model):
    """The columns of `sums.Sums`."""

    calls = models.BigIntegerField(default=0)
    failures = models.BigIntegerField(default=0)
    spent_nano_usd = models.BigIntegerField(default=0)
    finish = models.JSONField(default=dict)
    refused = models.JSONField(default=dict)
    prompt = ArrayField(models.BigIntegerField(), default=list)
    completion = ArrayField(models.BigIntegerField(), default=list)
    ttft = ArrayField(models.BigIntegerField(), default=list)
    duration = ArrayField(models.BigIntegerField(), default=list)
    answers = ArrayField(models.BigIntegerField(), default=list)

    class Meta:
        abstract = True


class Hour(_Sums):
    """One version in one hour (UTC), until it becomes part of a block."""

    version_id = models.UUIDField()
    hour = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["version_id", "hour"], name="watch_hour_once")]


class HourCaller(models.Model):
    """One organization that called the version in an hour, until the hour becomes part of a block."""

    version_id = models.UUIDField()
    hour = models.DateTimeField()
    organization_id = models.UUIDField()
    requests = models.BigIntegerField()  # calls and failures

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["version_id", "hour", "organization_id"], name="watch_caller_once")
        ]


class Demand(models.Model):
    """Requests for one version in one latency class that arrived in an hour, for plans of the fleet (`demand`).

    refused: those that were refused for want of capacity, again for each time that a client tried
    """

    version_id = models.UUIDField()
    hour = models.DateTimeField()
    latency_class = models.CharField(max_length=12)
    served = models.BigIntegerField(default=0)
    refused = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)  # of the served ones, as are the two below
    cached_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["version_id", "hour", "latency_class"], name="watch_demand_once")
        ]
        indexes: ClassVar = [models.Index(fields=["hour"], name="watch_demand_hour")]


class Payer(models.Model):
    """An organization that has paid for a call of the version."""

    version_id = models.UUIDField()
    organization_id = models.UUIDField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["version_id", "organization_id"], name="watch_payer_once")
        ]


class Block(_Sums):
    """Whole hours of one version with enough calls by enough payers to be shown (`blocks`). Never changed."""

    version_id = models.UUIDField()
    start = models.DateTimeField()
    end = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["version_id", "end"], name="watch_block_once")]


class Baseline(models.Model):
    """The first calls of a version, and those of the window that is not full yet: sums of whole blocks."""

    version_id = models.UUIDField(primary_key=True)
    calls = models.BigIntegerField(default=0)
    prompt = ArrayField(models.BigIntegerField(), default=list)
    answers = ArrayField(models.BigIntegerField(), default=list)
    window_start = models.DateTimeField(null=True)
    window_calls = models.BigIntegerField(default=0)
    window_prompt = ArrayField(models.BigIntegerField(), default=list)
    window_answers = ArrayField(models.BigIntegerField(), default=list)


class Window(models.Model):
    """A full window of calls, and how far it is from the version's first calls (`drift`)."""

    version_id = models.UUIDField()
    start = models.DateTimeField()
    end = models.DateTimeField()
    calls = models.BigIntegerField()
    prompt_psi = models.FloatField()
    answers_psi = models.FloatField(null=True)  # null: the answers are no closed set

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["version_id", "end"], name="watch_window_once")]

    @property
    def psi(self) -> float:
        """Return the larger of the two."""
        return max(self.prompt_psi, self.answers_psi or 0.0)


class Threshold(models.Model):
    """A creator's threshold of one alarm of a model; null turns the alarm off. Without a row the default holds."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="+")
    metric = models.CharField(max_length=12)
    value = models.FloatField(null=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["model", "metric"], name="watch_threshold_once")]


class Alarm(models.Model):
    """The state of one alarm of a version (`rules.AlarmState`)."""

    version_id = models.UUIDField()
    metric = models.CharField(max_length=12)
    firing = models.BooleanField(default=False)
    streak = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["version_id", "metric"], name="watch_alarm_once")]


class Thumb(models.Model):
    """The thumb of an organization for an answer that it paid for. It can be changed for a day, then it counts."""

    prediction_id = models.UUIDField(primary_key=True)
    organization_id = models.UUIDField()
    version_id = models.UUIDField()
    is_up = models.BooleanField()
    created_at = models.DateTimeField(db_default=Now())
    is_counted = models.BooleanField(default=False, db_default=False)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["created_at"], condition=models.Q(is_counted=False), name="watch_thumb_uncounted"),
            models.Index(fields=["organization_id", "-created_at"], name="watch_thumb_organization"),
        ]


class ThumbTotal(models.Model):
    """The thumbs of a version that are shown: they were added enough at a time, of enough organizations."""

    version_id = models.UUIDField(primary_key=True)
    up = models.BigIntegerField(default=0)
    down = models.BigIntegerField(default=0)

    @property
    def total(self) -> int:
        """Return how many there are."""
        return self.up + self.down

    @property
    def up_percent(self) -> float:
        """Return the share of thumbs that point up."""
        return round(100 * self.up / self.total, 1) if self.total else 0.0
