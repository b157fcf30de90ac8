"""A model with a royalty above it, its consumers, and a replica that signs times: charges of last month."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from billing.models import Account, Entry, Hold, RollupQueue, SplitPart, Usage
from billing.pricing import TokenUsage
from billing.services import release_hold_sync
from billing.splits import Part, split_id
from marketplace.accounts.models import Organization
from marketplace.catalog.models import Model, Version
from marketplace.promises import policy
from marketplace.promises.measuring import next_month
from marketplace.promises.models import Promise, PromiseKind
from marketplace.vault import services as vault
from protocol.receipts import Receipt, sign_receipt
from tests.billing.support import hold_request, make_organization, place, settle
from tests.database import as_superuser
from tests.marketplace.catalog import factories
from tests.marketplace.vault.factories import Booted, make_replica

ADAPTER, BASE = "cd" * 32, "ab" * 32
USAGE = TokenUsage(prompt_tokens=1_000, cached_tokens=0, completion_tokens=500)
COST = 450  # 1,000 · 150 + 500 · 600 pico-dollars
MONTH = (timezone.now().date().replace(day=1) - timedelta(days=1)).replace(day=1)
AFTERWARDS = datetime.combine(next_month(MONTH), datetime.min.time(), UTC) + timedelta(days=1, hours=1)


@dataclass
class Market:
    """Rows by the names that the tests call them."""

    seller: Organization
    upstream: Organization  # has a royalty of each charge
    model: Model
    version: Version
    booted: Booted
    buyers: list[Organization] = field(default_factory=list)

    def buyer(self) -> Organization:
        """A new consumer with credit."""
        self.buyers.append(make_organization(10**9))
        return self.buyers[-1]

    def call(self, buyer: Organization, *, at: datetime | None = None, **claims: Any) -> Usage:
        """A settled call of last month; `claims` replace those of its receipt."""
        hold = place(hold_request(buyer, self.seller, **self._terms()))
        replica = self.booted.replica
        receipt = Receipt(
            **{
                "jti": str(hold.prediction_id),
                "attempt": 1,
                "replica_id": str(replica.pk),
                "iat": 1_764_000_000,
                "adapter": ADAPTER,
                "base": BASE,
                "prompt_tokens": USAGE.prompt_tokens,
                "cached_tokens": USAGE.cached_tokens,
                "completion_tokens": USAGE.completion_tokens,
                "finish_reason": "stop",
                "ttft_ms": 10,
                "duration_ms": 90_000,
            }
            | claims
        )
        token = sign_receipt(receipt, self.booted.receipt_key, signer_id=str(replica.pk))
        settle(hold.prediction_id, USAGE, replica_id=replica.pk, receipt=token, finish_reason=receipt.finish_reason)
        self._move(hold.prediction_id, at)
        return Usage.objects.get(prediction_id=hold.prediction_id)

    def cut_off(self, buyer: Organization, *, reason: str = "length") -> None:
        """A call of last month whose answer was free because it was cut off."""
        hold = place(hold_request(buyer, self.seller, **self._terms()))
        release_hold_sync(prediction_id=hold.prediction_id, reason=reason)
        self._move(hold.prediction_id, None)

    def promise(self, kind: PromiseKind, bound: int | None, starts_on: date = MONTH) -> Promise:
        """A promise of a month that has begun, which nothing in the product could give."""
        with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            row = Promise.objects.create(model=self.model, kind=kind, bound=bound, starts_on=starts_on)
            cursor.execute("SET LOCAL session_replication_role = origin")
        return row

    def earned(self) -> dict[str, int]:
        """The money of each side: of each payee in all its accounts, and the platform's fees."""
        names = {self.seller.pk: "seller", self.upstream.pk: "upstream", None: "platform"}
        found = dict.fromkeys(names.values(), 0)
        for entry in Entry.objects.exclude(account__kind="customer_credit").select_related("account"):
            if entry.account.kind in ("creator_reserve", "creator_payable", "receivable", "platform_revenue"):
                found[names[entry.account.organization_id]] += entry.amount
        return found

    def _terms(self) -> dict[str, Any]:
        parts = (
            Part(self.seller.pk, 7_000, SplitPart.Reason.CREATOR),
            Part(self.upstream.pk, 1_000, SplitPart.Reason.UPSTREAM),
            Part(None, 2_000, SplitPart.Reason.PLATFORM),
        )
        return {
            "split_id": split_id(parts),
            "model_id": self.model.pk,
            "version_id": self.version.pk,
            "model_name": self.model.full_name,
            "replica_id": self.booted.replica.pk,
            "adapter": ADAPTER,
            "base": BASE,
        }

    def _move(self, prediction_id: uuid.UUID, at: datetime | None) -> None:
        at = at or datetime(MONTH.year, MONTH.month, 9, 12, tzinfo=UTC)
        connection.check_constraints()  # those that wait compare the times of before
        with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            Usage.objects.filter(prediction_id=prediction_id).update(created_at=at)
            Hold.objects.filter(pk=prediction_id).update(closed_at=at)
            RollupQueue.objects.filter(prediction_id=prediction_id).update(settled_at=at)
            cursor.execute("SET LOCAL session_replication_role = origin")


def credit_of(organization: Organization) -> int:
    """The credit of a consumer."""
    return Account.objects.get(organization=organization, kind="customer_credit").posted


@pytest.fixture
def market(db: None, monkeypatch: pytest.MonkeyPatch) -> Market:
    monkeypatch.setattr(policy, "LEAST_CALLS", 10)
    vault.bootstrap_platform_keys()
    version = factories.make_version()
    version.contract = {
        "instruction_tokens": 10,
        "max_tokens": 24,
        "output_schema": {"enum": ["dining", "income"]},
        "messages": "single",
        "system": "replace",
        "logprobs": "none",
    }
    version.save(update_fields=["contract"])
    seller = version.model.organization
    return Market(seller, make_organization(), version.model, version, make_replica())
