"""Outgoing money through Stripe Connect: a creator's account there, and each payout on its way to the bank.

These rows lead to ledger transactions and never replace them (docs/payouts.md has the states and their books).
"""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.ledger import LedgerTransaction
from marketplace.accounts.models import Organization, User
from marketplace.accounts.seals import SealedModel

DEFAULT_MINIMUM_CENTS = 2_500
MAX_MINIMUM_CENTS = 1_000_000
MAX_PAYOUT_CENTS = 99_999_999  # Stripe's own limit of one transfer


class PayoutAccount(SealedModel):
    """A creator's account at Stripe (Connect Express) as it was when last asked about, and the creator's terms."""

    SEALED: ClassVar = ("organization_id", "stripe_account_id")

    class State(models.TextChoices):
        STARTED = "started"  # Stripe still asks for details before anything can be paid
        ACTIVE = "active"  # takes transfers and pays out
        RESTRICTED = "restricted"  # was set up, and Stripe has stopped transfers or payouts
        CLOSED = "closed"  # Stripe does not know it any more, or has rejected it

    class Schedule(models.TextChoices):
        MANUAL = "manual"  # only when the creator asks
        WEEKLY = "weekly"  # on Mondays (UTC)
        MONTHLY = "monthly"  # on the first of the month (UTC)

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, primary_key=True, related_name="payout_account"
    )
    stripe_account_id = models.CharField(max_length=255, null=True, unique=True)
    state = models.CharField(max_length=10, choices=State, default=State.STARTED)
    details_submitted = models.BooleanField(default=False, db_default=False)
    requirements = models.JSONField(default=list)  # names of what Stripe asks for now
    disabled_reason = models.CharField(max_length=100, blank=True, default="", db_default="")
    bank_name = models.CharField(max_length=100, blank=True, default="", db_default="")
    bank_last4 = models.CharField(max_length=4, blank=True, default="", db_default="")
    schedule = models.CharField(max_length=8, choices=Schedule, default=Schedule.MONTHLY)
    minimum_cents = models.PositiveIntegerField(default=DEFAULT_MINIMUM_CENTS, db_default=DEFAULT_MINIMUM_CENTS)
    last_scheduled_on = models.DateField(null=True)  # the day of the last scheduled payout that was considered
    created_at = models.DateTimeField(db_default=Now())
    checked_at = models.DateTimeField(null=True)
    next_check_at = models.DateTimeField(null=True, db_default=Now())
    checks = models.PositiveIntegerField(default=0, db_default=0)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(minimum_cents__gte=1, minimum_cents__lte=MAX_MINIMUM_CENTS),
                name="billing_payout_account_minimum_range",
            ),
            models.CheckConstraint(
                condition=Q(state="started") | Q(stripe_account_id__isnull=False),
                name="billing_payout_account_exists_at_stripe",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["next_check_at"], condition=Q(next_check_at__isnull=False), name="billing_payout_account_due"
            )
        ]


class Payout(models.Model):
    """One sum on its way from a creator's payable balance to their bank. Its amount never changes, its state moves
    forward only (trigger `billing_payout_guard`)."""

    class State(models.TextChoices):
        CREATED = "created"  # taken from the payable balance; nothing has left the platform
        TRANSFERRED = "transferred"  # in the creator's account at Stripe
        PAYING = "paying"  # on its way from there to the bank
        PAID = "paid"  # Stripe says that it arrived
        FAILED = "failed"  # the bank did not take it; the money waits in the creator's account at Stripe
        RETURNED = "returned"  # the money is in the payable balance again

    OPEN = (State.CREATED, State.TRANSFERRED, State.PAYING, State.FAILED)  # the amount is in transit

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="payouts")
    stripe_account_id = models.CharField(max_length=255)
    amount_cents = models.PositiveIntegerField()
    state = models.CharField(max_length=11, choices=State, default=State.CREATED)
    requested_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")  # null: a schedule
    ledger_transaction = models.OneToOneField(LedgerTransaction, on_delete=models.PROTECT, related_name="payout")
    transfer_id = models.CharField(max_length=255, null=True, unique=True)
    bank_payout_id = models.CharField(max_length=255, null=True, unique=True)  # Stripe's payout
    return_id = models.CharField(max_length=255, null=True, unique=True)  # the transfer's reversal
    frozen_by = models.CharField(max_length=16, blank=True, default="", db_default="")  # why it waits: `freezes.Code`
    failure_code = models.CharField(max_length=64, blank=True, default="", db_default="")
    bank_last4 = models.CharField(max_length=4, blank=True, default="", db_default="")
    arrives_on = models.DateField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    transferred_at = models.DateTimeField(null=True)
    paid_at = models.DateTimeField(null=True)
    returned_at = models.DateTimeField(null=True)
    # When Stripe is asked or told the next thing; null: nothing is left to do, or a person has to look.
    next_check_at = models.DateTimeField(null=True, db_default=Now())
    checks = models.PositiveIntegerField(default=0, db_default=0)
    refusals = models.PositiveIntegerField(default=0, db_default=0)  # of the step at hand; each gets another key

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(amount_cents__gte=1, amount_cents__lte=MAX_PAYOUT_CENTS), name="billing_payout_amount_range"
            ),
            # One at a time, so that every statement begins where the last one ended.
            models.UniqueConstraint(
                fields=["organization"],
                condition=Q(state__in=["created", "transferred", "paying", "failed"]),
                name="billing_payout_one_open",
            ),
            models.CheckConstraint(
                condition=Q(state__in=["created", "returned"]) | Q(transfer_id__isnull=False),
                name="billing_payout_left_by_transfer",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=["paying", "paid"]) | Q(bank_payout_id__isnull=False),
                name="billing_payout_paying_at_stripe",
            ),
            models.CheckConstraint(
                condition=Q(state="returned", returned_at__isnull=False)
                | (~Q(state="returned") & Q(returned_at__isnull=True)),
                name="billing_payout_returned_has_time",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["organization", "-created_at"], name="billing_payout_newest"),
            models.Index(fields=["next_check_at"], condition=Q(next_check_at__isnull=False), name="billing_payout_due"),
        ]
