"""Calls in the books, as settlement writes them: usage rows with receipts, made many at a time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from billing.models import RollupQueue, Usage
from billing.rollups.services import roll_up as count_usage
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Version
from marketplace.watch.blocks import close_blocks
from marketplace.watch.models import Block, Mark
from marketplace.watch.rollup import roll_up
from protocol.encoding import encode_base64url
from tests.database import as_superuser
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

HOUR = timedelta(hours=1)
LABELS = ["groceries", "dining", "income"]
SCHEMA = {
    "type": "object",
    "properties": {"category": {"enum": LABELS}},
    "required": ["category"],
    "additionalProperties": False,
}
CONTRACT = {
    "instruction_tokens": 40,
    "max_tokens": 24,
    "output_schema": SCHEMA,
    "messages": "single",
    "system": "replace",
    "logprobs": "none",
}


def hours_ago(hours: int) -> datetime:
    """The start of the hour so many hours before the present one."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - hours * HOUR


def sold_version(contract: dict[str, Any] | None = CONTRACT) -> Version:
    """A published version of `acme/triage`."""
    version = make_version(make_model(make_organization("acme")))
    version.contract = contract
    version.save(update_fields=["contract"])
    return version


def buyers(count: int) -> list[Organization]:
    """So many organizations that buy."""
    return [make_organization() for _ in range(count)]


def receipt(answer: int | None = None, **claims: Any) -> str:
    """A receipt as the books have it. Nothing verifies its signature again, so it has none."""
    fields: dict[str, Any] = {
        "iss": "replica",
        "jti": str(uuid.uuid4()),
        "attempt": 1,
        "replica_id": str(uuid.uuid4()),
        "iat": 1,
        "adapter": None,
        "base": "ab" * 32,
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "completion_tokens": 1,
        "finish_reason": "stop",
        "ttft_ms": 30,
        "duration_ms": 100,
    }
    payload = json.dumps(fields | claims | ({} if answer is None else {"answer": answer})).encode()
    return f"e30.{encode_base64url(payload)}.x"


def usage(version: Version, buyer: Organization, at: datetime, **changes: Any) -> Usage:
    """The row of one call; `answer`, `duration_ms` and `ttft_ms` are its receipt's."""
    claims = {name: changes.pop(name) for name in ("answer", "duration_ms", "ttft_ms") if name in changes}
    fields: dict[str, Any] = {
        "prediction_id": uuid.uuid4(),
        "created_at": at,
        "organization_id": buyer.pk,
        "model_name": "acme/triage",
        "model_id": version.model_id,
        "version_id": version.pk,
        "creator_organization_id": version.model.organization_id,
        "prompt_tokens": 50,
        "cached_tokens": 0,
        "completion_tokens": 8,
        "input_micro_usd_per_mtok": 1,
        "output_micro_usd_per_mtok": 1,
        "cached_input_micro_usd_per_mtok": 1,
        "per_prediction_nano_usd": 0,
        "split_id": 0,
        "cost_nano_usd": 1_000,
        "finish_reason": "stop",
        "receipt": receipt(**claims),
    }
    return Usage(**(fields | changes))


def book(rows: Iterable[Usage]) -> None:
    """Write usage rows of any time, with the triggers off, and what their trigger would leave."""
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        made = Usage.objects.bulk_create(rows)
        RollupQueue.objects.bulk_create(
            [RollupQueue(prediction_id=row.prediction_id, settled_at=row.created_at) for row in made]
        )
        cursor.execute("SET LOCAL session_replication_role = origin")


def call(version: Version, buyer: Organization, at: datetime, **changes: Any) -> uuid.UUID:
    """Book one call."""
    row = usage(version, buyer, at, **changes)
    book([row])
    return row.prediction_id


def calls(version: Version, who: Iterable[Organization], at: datetime, each: int, **changes: Any) -> None:
    """Book `each` calls by each of these buyers within the hour."""
    book([usage(version, buyer, at + timedelta(seconds=n), **changes) for buyer in who for n in range(each)])


def watch() -> int:
    """Run what the task runs each minute, without refusals; return how many blocks there are."""
    count_usage()
    roll_up()
    assert Mark.objects.get().complete_at is not None
    close_blocks()
    return Block.objects.count()
