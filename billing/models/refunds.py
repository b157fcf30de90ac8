"""Money that goes back to a card: refunds of top-ups, and disputes that a customer's bank opened. Amounts are cents."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.models.ledger import LedgerTransaction
from billing.models.payments import TopUp


class TopUpRefund(models.Model):
    """A part of a top-up that goes back to the card. The credit is taken first, then Stripe is asked."""

    class State(models.TextChoices):
        REQUESTED = "requested"  # the credit is taken; Stripe may or may not know
        SENT = "sent"  # Stripe has sent the money
        FAILED = "failed"  # the money did not arrive, and the credit is back

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    top_up = models.ForeignKey(TopUp, on_delete=models.PROTECT, related_name="refunds")
    amount_cents = models.PositiveIntegerField()  # of credit
    tax_cents = models.PositiveIntegerField(default=0)  # the part of the tax that goes back with it
    state = models.CharField(max_length=9, choices=State, default=State.REQUESTED)
    stripe_refund_id = models.CharField(max_length=255, null=True, unique=True)
    failure = models.CharField(max_length=64, blank=True, default="", db_default="")  # Stripe's code of why it failed
    sent_at = models.DateTimeField(null=True)  # stays when the bank sends the money back later
    failed_at = models.DateTimeField(null=True)
    ledger_transaction = models.OneToOneField(LedgerTransaction, on_delete=models.PROTECT, related_name="top_up_refund")
    created_at = models.DateTimeField(db_default=Now())
    next_check_at = models.DateTimeField(db_default=Now())
    checks = models.PositiveIntegerField(default=0, db_default=0)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(amount_cents__gt=0), name="billing_top_up_refund_gives_something"),
            models.CheckConstraint(
                condition=Q(state="requested", sent_at__isnull=True, failed_at__isnull=True)
                | Q(state="sent", sent_at__isnull=False, failed_at__isnull=True)
                | Q(state="failed", failed_at__isnull=False),
                name="billing_top_up_refund_times",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["next_check_at"], condition=Q(state="requested"), name="billing_refund_waiting")
        ]


class Dispute(models.Model):
    """A payment that the customer's bank took back, until the bank decides.

    The disputed amount is `credit_cents` of the top-up's credit and `tax_cents` of its tax; any rest was given back
    before. An inquiry of the bank (`is_inquiry`) took nothing yet, so it freezes nothing.
    """

    class State(models.TextChoices):
        OPEN = "open"
        WON = "won"  # the money is back, and so is the credit
        LOST = "lost"

    id = models.CharField(primary_key=True, max_length=255)  # Stripe's
    top_up = models.ForeignKey(TopUp, on_delete=models.PROTECT, related_name="disputes")
    amount_cents = models.PositiveIntegerField()  # tax included, as the bank says
    credit_cents = models.PositiveIntegerField(default=0, db_default=0)
    tax_cents = models.PositiveIntegerField(default=0, db_default=0)
    withdrawn_cents = models.IntegerField(default=0, db_default=0)  # taken at Stripe and not given back, without fees
    fee_cents = models.IntegerField(default=0, db_default=0)  # Stripe's, borne by the platform
    reason = models.CharField(max_length=64)
    state = models.CharField(max_length=4, choices=State, default=State.OPEN)
    status = models.CharField(max_length=32)  # Stripe's word for where it stands
    frozen_nano_usd = models.BigIntegerField(default=0)  # credit set aside from the payment's lot
    evidence_due_at = models.DateTimeField(null=True)
    evidence_sent_at = models.DateTimeField(null=True)
    opened_at = models.DateTimeField(db_default=Now())
    closed_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state="open", closed_at__isnull=True) | (~Q(state="open") & Q(closed_at__isnull=False)),
                name="billing_dispute_closed_at",
            ),
            models.CheckConstraint(condition=Q(frozen_nano_usd__gte=0), name="billing_dispute_frozen_not_negative"),
            models.CheckConstraint(
                condition=Q(amount_cents__gte=F("credit_cents") + F("tax_cents")), name="billing_dispute_parts"
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["opened_at"], condition=Q(state="open"), name="billing_dispute_open")]

    @property
    def is_inquiry(self) -> bool:
        """Return whether the bank only asks so far, without taking the money."""
        return self.status.startswith("warning_")


class StripeMovement(models.Model):
    """A balance transaction of Stripe, as reconciliation read it; matched when the books say the same."""

    id = models.CharField(primary_key=True, max_length=255)  # Stripe's
    kind = models.CharField(max_length=64)  # Stripe's type
    source_id = models.CharField(max_length=255, blank=True)
    payment_intent_id = models.CharField(max_length=255, blank=True, default="", db_default="")  # of a charge
    currency = models.CharField(max_length=3, default="usd", db_default="usd")
    amount_cents = models.BigIntegerField()
    fee_cents = models.BigIntegerField()
    net_cents = models.BigIntegerField()
    booked_at = models.DateTimeField()  # by Stripe's clock
    matched_at = models.DateTimeField(null=True)
    ledger_transaction = models.OneToOneField(
        LedgerTransaction, on_delete=models.PROTECT, null=True, related_name="stripe_movement"
    )

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["booked_at"], name="billing_movement_time"),
            models.Index(fields=["booked_at"], condition=Q(matched_at__isnull=True), name="billing_movement_unmatched"),
        ]
