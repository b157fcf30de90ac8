"""Accepted licences, and requests to be let in to gated models."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models.functions import Now

from marketplace.accounts.models import Organization
from marketplace.catalog.licences import MAX_LICENCE_TEXT
from marketplace.catalog.models import Model

MAX_REASON = 1_000


class Terms(models.Model):
    """The licence as it was accepted, by the digest of its text: kept when the listing names another one."""

    digest = models.CharField(max_length=64, primary_key=True)  # `catalog.licences.terms_digest`
    licence = models.CharField(max_length=40)
    text = models.TextField(max_length=MAX_LICENCE_TEXT, blank=True)  # of the creator's own; empty for a known one


class LicenceAcceptance(models.Model):
    """One organization has accepted one text for one model. Never changed: another text is another row."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="+")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    terms = models.ForeignKey(Terms, on_delete=models.PROTECT, related_name="+", db_index=False)
    accepted_by = models.UUIDField(null=True)  # the user's id; no foreign key: the acceptance outlives them
    accepted_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "organization", "terms"], name="access_accepted_once")
        ]


class AccessRequest(models.Model):
    """An organization that asked to be let in to a gated model: one row, whose last answer holds."""

    class State(models.TextChoices):
        ASKED = "asked"
        GRANTED = "granted"
        DECLINED = "declined"
        REVOKED = "revoked"  # was granted, and is no more

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="access_requests")
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=8, choices=State, default=State.ASKED)
    reason = models.CharField(max_length=MAX_REASON)  # of the asking organization, for the creator
    answer = models.CharField(max_length=MAX_REASON, blank=True, default="", db_default="")  # of the creator
    asked_at = models.DateTimeField(db_default=Now())
    answered_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["model", "organization"], name="access_request_once"),
        ]
        indexes: ClassVar = [models.Index(fields=["model", "-asked_at", "-id"], name="access_newest_first")]
