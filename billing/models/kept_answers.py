"""Answers that are kept for retries under an idempotency key (docs/replays.md).

Rows are written by the functions of migration 0022 alone (billing/hotpath.py calls them).
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class KeptAnswer(models.Model):
    """The answer of one prediction, encrypted with its customer's key (`marketplace/vault/answer_keys.py`).

    The hold of the same id has the idempotency key, the digest of the request and the cost.
    """

    prediction_id = models.UUIDField(primary_key=True, editable=False)
    organization_id = models.UUIDField()  # the customer's
    content = models.BinaryField()  # empty: the answer was too large to be kept
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["expires_at"], name="billing_keptanswer_expiry"),
            models.Index(fields=["organization_id"], name="billing_keptanswer_owner"),
        ]
