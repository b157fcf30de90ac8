"""Messages that wait to leave the database, and findings that a person must resolve."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class Outbox(models.Model):
    """A message written in the transaction of the change that it reports; `marketplace.alerts` tells it to webhooks."""

    class Topic(models.TextChoices):
        TOP_UP_CREDITED = "top_up.credited"
        TOP_UP_FAILED = "top_up.failed"
        PAYOUT_PAID = "payout.paid"
        PAYOUT_RETURNED = "payout.returned"

    topic = models.CharField(max_length=40)  # one of Topic
    key = models.CharField(max_length=64)  # of what happened: it is told once
    payload = models.JSONField()
    created_at = models.DateTimeField(db_default=Now())
    announced_at = models.DateTimeField(null=True)  # the webhooks were told

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["topic", "key"], name="billing_outbox_unique_key")]
        indexes: ClassVar = [
            models.Index(fields=["id"], condition=Q(announced_at=None), name="billing_outbox_untold"),
        ]


class Incident(models.Model):
    """A contradiction in the books. Open until a person resolves it; one open row per kind and subject."""

    class Kind(models.TextChoices):
        LEDGER_SUM = "ledger_sum"  # the entries of all accounts do not sum to zero
        BALANCE_CACHE = "balance_cache"  # an account's `posted` is not the sum of its entries
        HELD_CACHE = "held_cache"  # an account's `held` is not the sum of its open holds
        CHARGE_MISMATCH = "charge_mismatch"  # hold, usage, entries and refund of a prediction do not say the same
        POSTING_MISMATCH = "posting_mismatch"  # postings or a closed month do not say what the entries say
        ROLLUP_MISMATCH = "rollup_mismatch"  # sums of usage or earnings do not say what usage and entries say
        PAYMENT_MISMATCH = "payment_mismatch"  # Stripe reports another amount than the top-up asked for
        PAYOUT_MISMATCH = "payout_mismatch"  # Stripe, a payout and the books do not say the same
        RECONCILIATION = "reconciliation"  # Stripe's balance and the books do not say the same: payouts are frozen
        STRIPE_EVENT = "stripe_event"  # an event fails again and again; closed when it is processed
        RECEIPT_REFUSED = "receipt_refused"  # a replica's receipt breaks a rule: nothing was charged on it
        RECEIPT_MISMATCH = "receipt_mismatch"  # a charge is not that of the receipt stored with it
        RELEASE_WITHOUT_DEMAND = "release_without_demand"  # a replica asked for a key that nothing on it needs
        RELEASE_BUDGET = "release_budget"  # a replica asked for more keys within an hour than it may
        CUSTODY_CHAIN = "custody_chain"  # the chain of a creator's releases does not hold together
        ROW_SEAL = "row_seal"  # a row that carries authority was not written by the platform (`accounts.seals`)
        REPLICA_LOST = "replica_lost"  # a name has been away for ten minutes; closed when it registers again

    # Contradictions about money: as long as one of them is open, no money leaves.
    FREEZING = (
        Kind.LEDGER_SUM,
        Kind.BALANCE_CACHE,
        Kind.CHARGE_MISMATCH,
        Kind.POSTING_MISMATCH,
        Kind.PAYMENT_MISMATCH,
        Kind.PAYOUT_MISMATCH,
        Kind.RECONCILIATION,
    )

    # Things that were changed past the platform: chains of releases, and rows that carry authority.
    CUSTODY = (Kind.CUSTODY_CHAIN, Kind.ROW_SEAL)

    kind = models.CharField(max_length=32)  # one of Kind
    subject = models.CharField(max_length=64, blank=True, default="", db_default="")
    detail = models.JSONField()
    opened_at = models.DateTimeField(db_default=Now())
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["kind", "subject"], condition=Q(resolved_at__isnull=True), name="billing_incident_one_open"
            )
        ]


class LedgerCheckpoint(models.Model):
    """How far charges were checked: what database transactions below `through` wrote. One row."""

    id = models.SmallIntegerField(primary_key=True)
    through = models.BigIntegerField(default=0)
