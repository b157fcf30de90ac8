"""Limits on spending: a tree of nodes, and the free allowances of listings. Amounts are nano-dollars.

Counters are written by the functions of the hot path alone; limits by `billing.budgets`.
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone

from marketplace.accounts.models import ApiKey, Organization

LIMITS = ("per_request", "daily", "monthly", "total")


def limits_are_not_negative() -> Q:
    """Return the condition that each limit of a node, and of the end users below it, is null or not negative."""
    condition = Q()
    for name in (*LIMITS, *(f"end_user_{limit}" for limit in LIMITS)):
        column = f"{name}_limit_nano_usd"
        condition &= Q(**{f"{column}__isnull": True}) | Q(**{f"{column}__gte": 0})
    return condition


class BudgetNode(models.Model):
    """A node: the organization, a team, a line of API keys, an end user of a key, or a run. Spend belongs to the node.

    A prediction is set aside and spent on every node of its path, from the root to the leaf; each limit holds for the
    node with all below it. Null means no limit. `api_key` is a line's first key, so that a rotation changes nothing.
    A day and a month are those of UTC; the counter of an earlier day or month is read as zero.
    """

    class Kind(models.TextChoices):
        ORGANIZATION = "organization"
        TEAM = "team"
        KEY = "key"
        END_USER = "end_user"
        RUN = "run"  # beside the tree: `billing.models.runs.Run` has the rest of it

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="budget_nodes")
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, related_name="children")
    kind = models.CharField(max_length=12, choices=Kind)
    name = models.CharField(max_length=100, blank=True, default="", db_default="")
    api_key = models.OneToOneField(ApiKey, on_delete=models.PROTECT, null=True, related_name="budget_node")
    end_user = models.CharField(max_length=64, null=True)  # as the caller names it
    path = ArrayField(models.UUIDField())  # from the root to this node

    per_request_limit_nano_usd = models.BigIntegerField(null=True)
    daily_limit_nano_usd = models.BigIntegerField(null=True)
    monthly_limit_nano_usd = models.BigIntegerField(null=True)
    total_limit_nano_usd = models.BigIntegerField(null=True)
    # Limits of each end user below this node; an end user's own limit takes their place.
    end_user_per_request_limit_nano_usd = models.BigIntegerField(null=True)
    end_user_daily_limit_nano_usd = models.BigIntegerField(null=True)
    end_user_monthly_limit_nano_usd = models.BigIntegerField(null=True)
    end_user_total_limit_nano_usd = models.BigIntegerField(null=True)

    day = models.DateField(db_default=Now())
    month = models.DateField(db_default=models.Func(models.Value("month"), Now(), function="date_trunc"))
    spent_today_nano_usd = models.BigIntegerField(default=0, db_default=0)
    spent_this_month_nano_usd = models.BigIntegerField(default=0, db_default=0)
    spent_total_nano_usd = models.BigIntegerField(default=0, db_default=0)
    held_nano_usd = models.BigIntegerField(default=0, db_default=0)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["organization"], condition=Q(kind="organization"), name="billing_budget_one_root"
            ),
            models.UniqueConstraint(
                fields=["parent", "end_user"], condition=Q(kind="end_user"), name="billing_budget_one_end_user"
            ),
            models.CheckConstraint(
                condition=Q(
                    held_nano_usd__gte=0,
                    spent_today_nano_usd__gte=0,
                    spent_this_month_nano_usd__gte=0,
                    spent_total_nano_usd__gte=0,
                ),
                name="billing_budget_node_not_negative",
            ),
            models.CheckConstraint(
                condition=limits_are_not_negative(),
                name="billing_budget_limits_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(kind="key", api_key__isnull=False, end_user__isnull=True)
                | Q(kind="end_user", api_key__isnull=True, end_user__isnull=False, parent__isnull=False)
                | Q(kind__in=["organization", "run"], api_key__isnull=True, end_user__isnull=True, parent__isnull=True)
                | Q(kind="team", api_key__isnull=True, end_user__isnull=True),
                name="billing_budget_node_fits_kind",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["organization"], name="billing_budget_organization")]

    @property
    def is_limit(self) -> bool:
        return self.monthly_limit_nano_usd is not None or self.total_limit_nano_usd is not None

    @property
    def spent_in_current_month_nano_usd(self) -> int:
        """Return the spending of this month (UTC); until its first prediction the row counts an earlier month."""
        this_month = timezone.now().date().replace(day=1)
        return self.spent_this_month_nano_usd if self.month >= this_month else 0


class Allowance(models.Model):
    """The part of a listing's free allowance that one consumer has used, or that its open holds have set aside."""

    class Kind(models.TextChoices):
        MONTHLY = "monthly"
        INTRODUCTORY = "introductory"  # once; `month` is 1970-01-01

    pk = models.CompositePrimaryKey("organization_id", "model_id", "kind", "month")
    organization_id = models.UUIDField()
    model_id = models.UUIDField()
    kind = models.CharField(max_length=12, choices=Kind)
    month = models.DateField()
    used_nano_usd = models.BigIntegerField(default=0, db_default=0)
    held_nano_usd = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(used_nano_usd__gte=0, held_nano_usd__gte=0), name="billing_allowance_not_negative"
            )
        ]
