"""Incoming money through Stripe. Stripe is never the ledger: these rows only lead to ledger transactions."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.ledger import LedgerTransaction
from marketplace.accounts.models import Organization

MIN_TOP_UP_CENTS = 100
MAX_TOP_UP_CENTS = 1_000_000
MAX_FINGERPRINT = 64  # characters of a card's fingerprint at Stripe


class TopUp(models.Model):
    """A customer's wish to buy credit. The state only moves forward; only `credited` has moved money."""

    class State(models.TextChoices):
        CREATED = "created"  # the row exists, Stripe may or may not know of it
        PENDING = "pending"  # a checkout page exists; waiting for the payment
        CREDITED = "credited"
        EXPIRED = "expired"
        FAILED = "failed"

    WAITING = (State.CREATED, State.PENDING)  # a payment may still come

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="top_ups")
    amount_cents = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=State, default=State.CREATED)
    checkout_session_id = models.CharField(max_length=255, null=True, unique=True)
    checkout_url = models.URLField(max_length=2000, blank=True)
    payment_intent_id = models.CharField(max_length=255, null=True, unique=True)
    ledger_transaction = models.OneToOneField(
        LedgerTransaction, on_delete=models.PROTECT, null=True, related_name="top_up"
    )
    # The saved card that is charged while its holder is away; null: the customer pays on a page.
    card = models.ForeignKey("billing.SavedCard", on_delete=models.PROTECT, null=True, related_name="top_ups")
    failure = models.CharField(max_length=64, blank=True, default="", db_default="")  # Stripe's code of a refusal
    # The fingerprint of the card that paid: null until known, "" where no card paid that counts (billing/card_uses.py).
    card_fingerprint = models.CharField(max_length=MAX_FINGERPRINT, null=True)
    tax_cents = models.PositiveIntegerField(default=0, db_default=0)  # paid on top of the amount; no credit
    created_at = models.DateTimeField(db_default=Now())
    credited_at = models.DateTimeField(null=True)
    # When Stripe is asked again about a payment that is still possible; null: a person has to look.
    next_check_at = models.DateTimeField(null=True, db_default=Now())
    checks = models.PositiveIntegerField(default=0, db_default=0)

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["next_check_at"],
                condition=Q(state__in=["created", "pending"]) & Q(next_check_at__isnull=False),
                name="billing_top_up_waiting",
            ),
            models.Index(
                fields=["credited_at"],
                condition=Q(state="credited", card_fingerprint__isnull=True),
                name="billing_top_up_card_unknown",
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(amount_cents__gte=MIN_TOP_UP_CENTS, amount_cents__lte=MAX_TOP_UP_CENTS),
                name="billing_top_up_amount_range",
            ),
            models.CheckConstraint(
                condition=Q(state="credited", ledger_transaction__isnull=False, credited_at__isnull=False)
                | (~Q(state="credited") & Q(ledger_transaction__isnull=True, credited_at__isnull=True)),
                name="billing_top_up_credited_has_transaction",
            ),
        ]


class StripeEvent(models.Model):
    """An event from Stripe, without its body: the object is fetched again when the event is processed."""

    id = models.CharField(primary_key=True, max_length=255)
    type = models.CharField(max_length=100)
    object_id = models.CharField(max_length=255)
    received_at = models.DateTimeField(db_default=Now())
    processed_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(db_default=Now())
    last_error = models.CharField(max_length=500, blank=True)

    class Meta:
        indexes: ClassVar = [
            models.Index(
                fields=["next_attempt_at"], condition=Q(processed_at__isnull=True), name="billing_event_waiting"
            )
        ]
