"""Saved cards and automatic top-ups. The card itself is at Stripe: we keep its id and what a customer knows it by."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from billing.models.payments import MAX_FINGERPRINT, MAX_TOP_UP_CENTS, MIN_TOP_UP_CENTS
from marketplace.accounts.models import Organization
from marketplace.accounts.seals import SealedModel


class StripeCustomer(SealedModel):
    """The organization's customer at Stripe, to whom its cards belong."""

    SEALED: ClassVar = ("organization_id", "customer_id")

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, primary_key=True, related_name="stripe_customer"
    )
    customer_id = models.CharField(max_length=255, unique=True)
    created_at = models.DateTimeField(db_default=Now())


class SavedCard(SealedModel):
    """A card that may be charged while its holder is away."""

    SEALED: ClassVar = ("id", "organization_id", "payment_method_id", "removed_at")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="saved_cards")
    payment_method_id = models.CharField(max_length=255, unique=True)
    brand = models.CharField(max_length=32)
    last4 = models.CharField(max_length=4)
    exp_month = models.PositiveSmallIntegerField()
    exp_year = models.PositiveSmallIntegerField()
    fingerprint = models.CharField(max_length=MAX_FINGERPRINT, null=True)  # null until it is known; "": it has none
    created_at = models.DateTimeField(db_default=Now())
    removed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        brand = self.brand.replace("_", " ").title()
        return f"{brand} •••• {self.last4}"

    @property
    def is_expired(self) -> bool:
        """Return whether the last month that is printed on the card is over (UTC)."""
        today = timezone.now()
        return (self.exp_year, self.exp_month) < (today.year, today.month)


class CardUse(models.Model):
    """A card that an organization saved or paid with, known by Stripe's fingerprint: equal cards have equal ones.

    It says which organizations belong together, and since when a card is known. The number never reaches the platform.
    """

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="card_uses")
    fingerprint = models.CharField(max_length=MAX_FINGERPRINT)
    first_used_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["organization", "fingerprint"], name="billing_card_use_unique")
        ]
        indexes: ClassVar = [models.Index(fields=["fingerprint"], name="billing_card_use_fingerprint")]


class AutoTopUp(SealedModel):
    """The wish to buy credit whenever less than a threshold is left, up to a limit per month (UTC)."""

    SEALED: ClassVar = ("organization_id", "card_id", "threshold_cents", "amount_cents", "monthly_limit_cents")

    class State(models.TextChoices):
        ON = "on"
        OFF = "off"
        WAITING = "waiting"  # the card's bank asks the holder (3-D Secure): a payment page waits for them
        STOPPED = "stopped"  # the card was refused too often; a member turns it on again

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, primary_key=True, related_name="auto_top_up"
    )
    card = models.ForeignKey(SavedCard, on_delete=models.PROTECT, related_name="auto_top_ups")
    threshold_cents = models.PositiveBigIntegerField()  # compared with nano-dollars: no overflow
    amount_cents = models.PositiveIntegerField()
    monthly_limit_cents = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=State, default=State.ON)
    failures = models.PositiveSmallIntegerField(default=0, db_default=0)  # in a row
    next_attempt_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(amount_cents__gte=MIN_TOP_UP_CENTS, amount_cents__lte=MAX_TOP_UP_CENTS),
                name="billing_auto_top_up_amount_range",
            ),
            models.CheckConstraint(
                condition=Q(monthly_limit_cents__gte=F("amount_cents")), name="billing_auto_top_up_limit_lets_one"
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["next_attempt_at"], condition=Q(state="on"), name="billing_auto_on")]
