"""Builders for the tests of money: organizations with accounts, holds, and async connections to the test database."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from billing.hotpath import Charge, HoldRequest
from billing.ledger import get_account
from billing.models import Account, Entry, LedgerTransaction, RollupQueue, Run, Usage
from billing.pricing import Price, TokenUsage
from billing.rollups.services import roll_up
from billing.services import credit_promotion, settle_hold_sync
from billing.splits import simple_parts, split_id
from billing.statements import (
    PLACE_HOLDS,
    SETTLE_KEPT,
    Settlement,
    kept_parameters,
    place_parameters,
    placed_or_raise,
    settled_or_raise,
)
from marketplace.accounts.models import ApiKey, Organization
from tests.database import as_owner, behind_the_triggers

PRICE = Price(input_micro_usd_per_mtok=150, cached_input_micro_usd_per_mtok=75, output_micro_usd_per_mtok=600)
USAGE = TokenUsage(prompt_tokens=100, cached_tokens=20, completion_tokens=50)
REPLICA = uuid.UUID(int=3)
SPLITS: dict[tuple[uuid.UUID, int], int] = {}
USAGE_COST = 44  # 80·150 + 20·75 + 50·600 = 43,500 pico-dollars, rounded up to nano-dollars


def make_organization(credit_nano_usd: int = 0) -> Organization:
    """An organization with, if asked, promotional credit."""
    slug = f"org-{uuid.uuid4().hex[:12]}"
    organization = Organization.objects.create(slug=slug, name=slug)
    SPLITS[organization.pk, 8_000] = split_id(simple_parts(organization.pk, 8_000))
    if credit_nano_usd:
        credit_promotion(organization=organization, amount_nano_usd=credit_nano_usd, reference=slug)
    return organization


def split_of(creator: Organization, creator_bps: int = 8_000) -> int:
    """Return the split of a listing of `creator`. The usual one is known, so that async tests may ask too."""
    known = SPLITS.get((creator.pk, creator_bps))
    return known or split_id(simple_parts(creator.pk, creator_bps))


def charge(prediction_id: uuid.UUID, usage: TokenUsage = USAGE, **changes: Any) -> Charge:
    """The report of a first attempt; `changes` replace its fields."""
    fields: dict[str, Any] = {"attempt": 1, "finish_reason": "stop", "receipt": "receipt", "replica_id": REPLICA}
    return Charge(prediction_id, usage=usage, **(fields | changes))


def hold_request(
    organization: Organization, creator: Organization, creator_bps: int = 8_000, **changes: Any
) -> HoldRequest:
    """A hold of 1,000 nano-dollars; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "prediction_id": uuid.uuid4(),
        "organization_id": organization.pk,
        "api_key_id": None,
        "amount_nano_usd": 1_000,
        "price": PRICE,
        "split_id": split_of(creator, creator_bps),
        "model_name": "acme/triage",
        "model_id": uuid.UUID(int=1),
        "version_id": uuid.UUID(int=2),
        "creator_organization_id": creator.pk,
        "idempotency_key": None,
        "request_hash": hashlib.sha256(b"body").digest(),
        "expires_at": datetime.now(UTC) + timedelta(minutes=5),
        "replica_id": REPLICA,
        "gateway_id": None,
        "adapter": "sha256:" + "0" * 64,
        "base": "base",
        "max_prompt_tokens": 1_000,
        "max_tokens": 1_000,
    }
    return HoldRequest(**(fields | changes))


def place(request: HoldRequest) -> HoldRequest:
    """Place a hold on the test's own connection."""
    with connection.cursor() as cursor:
        cursor.execute(PLACE_HOLDS, place_parameters([request]))
        placed_or_raise(cursor.fetchone(), request)
    return request


def open_run(key: ApiKey, **terms: Any) -> Run:
    """A run of the key's line, as the gateway makes it; `terms` replace those of its."""
    terms = {"name": "nightly", "metadata": {}, "max_cost_nano_usd": 10**6, "max_calls": 100, "seconds": 600} | terms
    run_id = uuid.uuid4()
    parameters = (run_id, key.organization_id, key.pk, terms["name"], json.dumps(terms["metadata"]))
    limits = (terms["max_cost_nano_usd"], terms["max_calls"], terms["seconds"], 1_000)
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_open_run(%s, %s, %s, %s, %s, %s, %s, %s, %s)", [*parameters, *limits])
    return Run.objects.select_related("node").get(pk=run_id)


def settle(prediction_id: uuid.UUID, usage: TokenUsage = USAGE, **changes: Any) -> Settlement:
    """Settle the first attempt of a hold; `changes` replace what is reported."""
    report: dict[str, Any] = {"attempt": 1, "finish_reason": "stop", "receipt": "r", "replica_id": REPLICA}
    return settle_hold_sync(prediction_id=prediction_id, usage=usage, **(report | changes))


def settle_kept(prediction_id: uuid.UUID, usage: TokenUsage = USAGE, answer: bytes = b"encrypted") -> Settlement:
    """Settle the first attempt of a hold that has an idempotency key, and keep its answer."""
    with connection.cursor() as cursor:
        cursor.execute(SETTLE_KEPT, kept_parameters([charge(prediction_id, usage, answer=answer)]))
        return settled_or_raise(cursor.fetchone())


def keep(prediction_id: uuid.UUID) -> None:
    """Keep an answer of an open hold ahead of its charge."""
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("SELECT billing_keep_answers(ARRAY[%s], ARRAY['encrypted'::bytea])", [prediction_id])


def conninfo() -> dict[str, Any]:
    """Return how to reach the test database as the platform does, without Django."""
    parameters = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port", "options")
    return {name: parameters[name] for name in names if parameters.get(name)}


@asynccontextmanager
async def hot_connection() -> AsyncIterator[AsyncConnection[Any]]:
    """One connection as the gateway has it."""
    async with await AsyncConnection.connect(**conninfo(), autocommit=True) as conn:
        yield conn


@asynccontextmanager
async def hot_pool(size: int) -> AsyncIterator[AsyncConnectionPool[AsyncConnection[Any]]]:
    """A pool as the gateway has it."""
    kwargs = conninfo() | {"autocommit": True}
    async with AsyncConnectionPool(kwargs=kwargs, min_size=size, max_size=size, open=False, timeout=60) as pool:
        yield pool


def insert_usage(**fields: Any) -> Usage:
    """Write one usage row; see `insert_usages`."""
    (row,) = insert_usages([fields])
    return row


def insert_usages(fields: Sequence[dict[str, Any]]) -> list[Usage]:
    """Write usage rows of any time by hand, with the triggers off, and what their creators earned: nothing in the
    product could. The sums of usage and earnings count them.

    Few statements for many rows: the pages' world has 25, and hundreds of tests make one.
    """
    owners = Organization.objects.in_bulk({row["creator_organization_id"] for row in fields})
    accounts = {pk: get_account(kind=Account.Kind.CREATOR_RESERVE, organization=owner) for pk, owner in owners.items()}
    clearing = get_account(kind=Account.Kind.CLEARING)
    with behind_the_triggers():
        rows = Usage.objects.bulk_create([Usage(**row) for row in fields])
        entries = []
        for row, ledger in _booked(rows):
            earned = row.cost_nano_usd * 8 // 10
            entries.append(Entry(transaction=ledger, account=accounts[row.creator_organization_id], amount=earned))
            entries.append(Entry(transaction=ledger, account=clearing, amount=-earned))
        Entry.objects.bulk_create(entries)
        RollupQueue.objects.bulk_create(
            [RollupQueue(prediction_id=row.prediction_id, settled_at=row.created_at) for row in rows]
        )
    roll_up()
    return rows


def _booked(rows: list[Usage]) -> list[tuple[Usage, LedgerTransaction]]:
    """Give each prediction its transaction, unless it is another row of one that the caller has booked."""
    firsts: dict[str, Usage] = {}
    for row in rows:
        firsts.setdefault(str(row.prediction_id), row)
    booked = LedgerTransaction.objects.filter(kind="prediction", reference__in=firsts)
    known = set(booked.values_list("reference", flat=True))
    new = [LedgerTransaction(kind="prediction", reference=reference) for reference in firsts if reference not in known]
    return [(firsts[one.reference], one) for one in LedgerTransaction.objects.bulk_create(new)]
