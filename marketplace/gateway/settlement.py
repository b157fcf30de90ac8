"""A hold as the one judge of receipts sees it (`protocol.receipts.verify_receipt`), and the end of a refused receipt.

A receipt that is refused moves no money: the hold is released, and one incident keeps the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import UUID

from django.db import connection
from psycopg import AsyncConnection

from billing.hotpath import release_hold
from billing.models import Hold, Incident
from billing.services import release_hold_sync
from marketplace.vault.models import Replica
from protocol.latency import LatencyClass
from protocol.receipts import MAX_RECEIPT_BYTES, Grant, ReceiptRejected

Signers = Mapping[UUID, bytes]  # replica id → public receipt key of a boot that may sign

_RECORD = "INSERT INTO billing_incident (kind, subject, detail) VALUES (%s, %s, %s::jsonb) ON CONFLICT DO NOTHING"
REFUSED = "the receipt was refused"  # why the hold was released


def grant_of(hold: Hold) -> Grant:
    """Return the grant of the hold's attempt in progress; a hold without a replica grants nothing to anybody."""
    return Grant(
        prediction_id=hold.id,
        attempt=hold.attempt,
        replica_id=hold.replica_id or UUID(int=0),
        adapter=hold.adapter,
        base=hold.base,
        max_prompt_tokens=hold.max_prompt_tokens,
        max_tokens=hold.max_tokens,
        latency_class=cast(LatencyClass, hold.latency_class),
    )


def signers_of(replica_ids: Iterable[UUID]) -> dict[UUID, Signers]:
    """Return for each dispatched replica the keys that may sign its receipts: its own, and those of later boots of the
    same name."""
    dispatched = {row.pk: row for row in Replica.objects.filter(pk__in=set(replica_ids))}
    boots: dict[str, list[Replica]] = {}
    for row in Replica.objects.filter(name__in={one.name for one in dispatched.values()}):
        boots.setdefault(row.name, []).append(row)
    return {
        replica_id: {
            boot.pk: bytes(boot.receipt_public_key)
            for boot in boots[first.name]
            if boot.pk == replica_id or boot.registered_at > first.registered_at
        }
        for replica_id, first in dispatched.items()
    }


async def refuse_receipt(database: AsyncConnection[Any], grant: Grant, token: str, rejection: ReceiptRejected) -> bool:
    """Keep the evidence against a receipt and release its hold. True if the release was this call's."""
    await database.execute(_RECORD, _incident(grant, token, rejection))
    return await release_hold(database, grant.prediction_id, reason=REFUSED)


def refuse_receipt_sync(grant: Grant, token: str, rejection: ReceiptRejected) -> bool:
    """Do what `refuse_receipt` does, from Celery."""
    with connection.cursor() as cursor:
        cursor.execute(_RECORD, _incident(grant, token, rejection))
    return release_hold_sync(prediction_id=grant.prediction_id, reason=REFUSED)


def evidence(grant: Grant, token: str) -> dict[str, Any]:
    """Return what an incident about a receipt keeps: the receipt as it came, and the grant that it was held against."""
    return {
        "receipt": token[:MAX_RECEIPT_BYTES].replace("\0", ""),  # PostgreSQL's JSON has no such character
        "grant": {
            "prediction_id": str(grant.prediction_id),
            "attempt": grant.attempt,
            "replica_id": str(grant.replica_id),
            "adapter": grant.adapter,
            "base": grant.base,
            "max_prompt_tokens": grant.max_prompt_tokens,
            "max_tokens": grant.max_tokens,
            "latency_class": grant.latency_class,
        },
    }


def _incident(grant: Grant, token: str, rejection: ReceiptRejected) -> tuple[str, str, str]:
    detail = {"rule": rejection.rule, "message": str(rejection)[:500], **evidence(grant, token)}
    return Incident.Kind.RECEIPT_REFUSED.value, str(grant.prediction_id), json.dumps(detail)
