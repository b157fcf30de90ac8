"""A consumer, a creator and a replica that signs what it did: charges as the gateway settles them."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction

from billing.models import Hold, Usage
from marketplace.accounts.models import Organization
from marketplace.vault import services as vault
from protocol.receipts import Receipt, sign_receipt
from tests.billing.support import USAGE, hold_request, make_organization, place, settle
from tests.database import as_superuser
from tests.marketplace.vault.factories import Booted, make_replica

ADAPTER, BASE = "cd" * 32, "ab" * 32


@dataclass
class Market:
    """Rows by the names that the tests call them."""

    buyer: Organization
    seller: Organization
    booted: Booted

    def charge(self, charged_at: datetime | None = None, **changes: Any) -> Usage:
        """A settled prediction; `charged_at` moves it to another time, `changes` replace fields of its hold."""
        replica = self.booted.replica
        fields = {"replica_id": replica.pk, "adapter": ADAPTER, "base": BASE} | changes
        hold = place(hold_request(self.buyer, self.seller, **fields))
        receipt = Receipt(
            jti=str(hold.prediction_id),
            attempt=1,
            replica_id=str(replica.pk),
            iat=1_764_000_000,
            adapter=ADAPTER,
            base=BASE,
            prompt_tokens=USAGE.prompt_tokens,
            cached_tokens=USAGE.cached_tokens,
            completion_tokens=USAGE.completion_tokens,
            finish_reason="stop",
            ttft_ms=10,
            duration_ms=90,
        )
        token = sign_receipt(receipt, self.booted.receipt_key, signer_id=str(replica.pk))
        settle(hold.prediction_id, replica_id=replica.pk, receipt=token)
        if charged_at is not None:
            move(hold.prediction_id, charged_at)
        return Usage.objects.get(prediction_id=hold.prediction_id)


def move(prediction_id: uuid.UUID, charged_at: datetime) -> None:
    """Change the time of a charge, which nothing in the product could."""
    connection.check_constraints()  # those that wait compare the times of before
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        Usage.objects.filter(prediction_id=prediction_id).update(created_at=charged_at)
        Hold.objects.filter(pk=prediction_id).update(closed_at=charged_at)
        cursor.execute("SET LOCAL session_replication_role = origin")


def at(day: int, hour: int = 12, minute: int = 0, second: int = 0) -> datetime:
    """A moment of a month whose charges are all past."""
    return datetime(2026, 3, day, hour, minute, second, tzinfo=UTC)


@pytest.fixture
def market(db: None) -> Market:
    vault.bootstrap_platform_keys()
    return Market(make_organization(10**9), make_organization(), make_replica())
