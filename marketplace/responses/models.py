"""Kept responses. The gateway writes and reads them (`marketplace/gateway/responses/store.py`)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models.functions import Now


class StoredResponse(models.Model):
    """One response with the input of its request, under the id of its prediction.

    `sealed` is `packing.pack` of both, encrypted with the organization's key (`marketplace/vault/answer_keys.py`).
    """

    id = models.UUIDField(primary_key=True, editable=False)
    organization_id = models.UUIDField()  # plain, as in usage: a foreign key would lock its row for each response
    previous_id = models.UUIDField(null=True)  # the response that it went on from
    sealed = models.BinaryField()
    size = models.PositiveIntegerField()  # bytes before packing
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["expires_at"], name="responses_expiry"),
            models.Index(fields=["organization_id", "created_at"], name="responses_organization"),
        ]
