"""Questions that a person answers about a listing, what was done about them, and what customers said."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model, Version

MAX_TEXT = 1_000  # characters of a reason, an appeal or a report


class Review(models.Model):
    """One question for a person: may this be for sale in public?

    `version`: a version that waits as `in_review`. `listing`: a change of words or visibility that waits in `change`.
    `reports`: what customers said about a model, which stays on sale meanwhile.
    """

    class Kind(models.TextChoices):
        VERSION = "version"
        LISTING = "listing"
        REPORTS = "reports"

    class State(models.TextChoices):
        OPEN = "open"
        APPROVED = "approved"
        REFUSED = "refused"
        WITHDRAWN = "withdrawn"  # by its creator, before anybody decided

    class Reason(models.TextChoices):
        NO_RECORD = "no_record"  # no model of the organization was approved yet
        STRIKE = "strike"
        FINDING = "finding"
        REPORTS = "reports"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="reviews")
    version = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="reviews")
    kind = models.CharField(max_length=8, choices=Kind)
    state = models.CharField(max_length=9, choices=State, default=State.OPEN)
    reasons = ArrayField(models.CharField(max_length=9, choices=Reason))
    findings = models.JSONField(default=list)  # `checks.Finding`, as objects
    change = models.JSONField(default=dict)  # fields of the listing, of the kind `listing`
    taken_off = ArrayField(models.UUIDField(), default=list)  # versions that this review took off sale
    opened_at = models.DateTimeField()
    due_at = models.DateTimeField()  # one working day later (`working_days`)
    appeal = models.TextField(max_length=MAX_TEXT, blank=True)
    appealed_at = models.DateTimeField(null=True, blank=True)
    decision = models.TextField(max_length=MAX_TEXT, blank=True)  # the reason given for it
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["model", "kind", "version"],
                condition=models.Q(state="open"),
                name="review_open_once",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=models.Q(kind="version", version__isnull=False) | ~models.Q(kind="version"),
                name="review_of_a_version_names_it",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["due_at"], condition=models.Q(state="open"), name="review_queue"),
        ]


class Act(models.Model):
    """One thing that was done about a review. The database refuses to change or delete a row.

    `by` is the id of a user; null: the platform's own checks.
    """

    class Kind(models.TextChoices):
        OPENED = "opened"
        APPROVED = "approved"
        REFUSED = "refused"
        STRUCK = "struck"  # a strike against the organization
        UNSTRUCK = "unstruck"
        APPEALED = "appealed"
        WITHDRAWN = "withdrawn"
        PULLED = "pulled"  # taken off sale while it waits

    review = models.ForeignKey(Review, on_delete=models.PROTECT, related_name="acts")
    kind = models.CharField(max_length=9, choices=Kind)
    by = models.UUIDField(null=True, blank=True)
    reason = models.TextField(max_length=MAX_TEXT, blank=True)
    at = models.DateTimeField(auto_now_add=True)


class Strike(models.Model):
    """A refusal that counts against its organization until it is lifted: everything public is reviewed meanwhile."""

    review = models.OneToOneField(Review, on_delete=models.PROTECT, primary_key=True)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="strikes")
    created_at = models.DateTimeField(auto_now_add=True)
    lifted_at = models.DateTimeField(null=True, blank=True)


class Report(models.Model):
    """The report of an organization about a model: one each."""

    class Reason(models.TextChoices):
        COPY = "copy", "It copies another model"
        IMPERSONATION = "impersonation", "It pretends to be somebody else's"
        HARMFUL = "harmful", "Its answers or its card do harm"
        MISLEADING = "misleading", "It is not what its page says"
        OTHER = "other", "Something else"

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="reports")
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="reports")  # that reports
    reason = models.CharField(max_length=13, choices=Reason)
    text = models.TextField(max_length=MAX_TEXT, blank=True)
    review = models.ForeignKey(Review, on_delete=models.PROTECT, null=True, blank=True, related_name="reports")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "organization"], name="report_once"),
        ]


class Sketch(models.Model):
    """256 numbers by which a copy of a version's weights is known (`protocol.lineage`). No page or answer has it."""

    version = models.OneToOneField(Version, on_delete=models.PROTECT, primary_key=True)
    values = models.BinaryField(max_length=256)  # int8
    created_at = models.DateTimeField(auto_now_add=True)
