"""Runs: a budget, a count of calls and a deadline over many predictions. The money of a run is in its budget node."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.budgets import BudgetNode
from marketplace.accounts.models import Organization


class Run(models.Model):
    """One run. Its id is that of its node, whose name and total limit are the run's; calls are holds with `run_id`.

    `key_line` is the first key of the line that made it, and that alone may use it. `calls` counts the predictions that
    were admitted, whatever became of them: `billing_place_holds` writes it under the node's lock.
    """

    node = models.OneToOneField(BudgetNode, on_delete=models.PROTECT, primary_key=True, related_name="run")
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="runs", db_index=False)
    key_line = models.UUIDField()
    metadata = models.JSONField(default=dict, db_default={})
    max_calls = models.IntegerField()
    calls = models.IntegerField(default=0, db_default=0)
    deadline = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(max_calls__gte=1, calls__gte=0, calls__lte=models.F("max_calls")),
                name="billing_run_calls_fit",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-created_at", "-node"], name="billing_run_organization"),
            models.Index(fields=["deadline"], name="billing_run_deadline"),
        ]
