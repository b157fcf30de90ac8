"""A month of a model's calls, measured for one promise from receipts whose signature holds.

A receipt proves that its replica said so and cannot say otherwise later; it does not prove that the replica's clock was
right (docs/promises.md). Calls of the creator's own organization count for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from django.db.models import Count

from billing.models import Hold, Usage
from billing.pricing import BASIS_POINTS
from marketplace.catalog.models import Model, Version
from marketplace.promises.models import Promise, PromiseKind
from marketplace.promises.policy import LONGEST_PROMPT, percentile_95
from marketplace.vault.models import Replica
from protocol.contracts import answers_are_choices
from protocol.receipts import Receipt, ReceiptRejected, read_receipt, receipt_replica_id

_UNTIMED_CLASS = "batch"  # flexible calls are sold without a time
_CUT_OFF = "length"  # how the books name an answer that met its contract's limit; its receipt counts no token


@dataclass(slots=True)
class Calls:
    """Calls that counted, and those of them that missed the bound; `times` is a histogram of milliseconds."""

    calls: int = 0
    missed: int = 0
    times: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a promise is judged by, by consumer."""

    by_consumer: dict[UUID, Calls]

    @property
    def calls(self) -> int:
        return sum(one.calls for one in self.by_consumer.values())

    @property
    def missed(self) -> int:
        return sum(one.missed for one in self.by_consumer.values())

    def value(self, kind: str) -> int | None:
        """Return the p95 in milliseconds, or the basis points of valid answers; None without calls."""
        if kind == PromiseKind.TTFT:
            return percentile_95(sum((one.times for one in self.by_consumer.values()), Counter()))
        return (self.calls - self.missed) * BASIS_POINTS // self.calls if self.calls else None


def bounds_of(month: date) -> tuple[datetime, datetime]:
    """Return the first instant of a month (UTC) and that of the next one."""
    return datetime(month.year, month.month, 1, tzinfo=UTC), _midnight(next_month(month))


def next_month(month: date) -> date:
    """Return the first day of the month after that of `month`."""
    return date(month.year + month.month // 12, month.month % 12 + 1, 1)


def measure(promise: Promise, month: date) -> Measured:
    """Read the month's receipts and count, for each consumer, the calls that the promise is about."""
    since, until = bounds_of(month)
    usage = Usage.objects.filter(
        creator_organization_id=promise.model.organization_id,
        model_id=promise.model_id,
        created_at__gte=since,
        created_at__lt=until,
    ).exclude(organization_id=promise.model.organization_id)
    found: dict[UUID, Calls] = {}
    if promise.kind == PromiseKind.TTFT:
        _count_times(promise, usage.exclude(latency_class=_UNTIMED_CLASS).iterator(chunk_size=2_000), found)
    else:
        versions = _versions_of_choices(promise.model)
        _count_whole(usage.filter(version_id__in=versions).iterator(chunk_size=2_000), found)
        _count_cut_off(promise.model, versions, since, until, found)
    return Measured(found)


def is_late(receipt: Receipt, bound: int) -> bool | None:
    """Return whether a call's first token came after the bound; None: the promise is not about this call."""
    if receipt.ttft_ms is None or receipt.prompt_tokens - receipt.cached_tokens > LONGEST_PROMPT:
        return None
    return receipt.ttft_ms > bound


class Signers:
    """The public keys of replicas, each read once."""

    def __init__(self) -> None:
        """Know none."""
        self._keys: dict[UUID, bytes] = {}

    def read(self, row_id: UUID, token: str) -> Receipt | None:
        """Return the receipt of this prediction if its signature holds; the audit reports those that do not."""
        try:
            signer = receipt_replica_id(token)
            if signer not in self._keys:
                boots = Replica.objects.filter(pk=signer).values_list("receipt_public_key", flat=True)
                self._keys.update(zip([signer], map(bytes, boots), strict=False))
            receipt = read_receipt(token, self._keys)
        except ReceiptRejected:
            return None
        return receipt if receipt.jti == str(row_id) else None


def _count_times(promise: Promise, rows: Iterable[Usage], found: dict[UUID, Calls]) -> None:
    signers, bound = Signers(), promise.bound or 0
    for row in rows:
        receipt = signers.read(row.prediction_id, row.receipt)
        late = None if receipt is None else is_late(receipt, bound)
        if receipt is None or receipt.ttft_ms is None or late is None:
            continue
        calls = found.setdefault(row.organization_id, Calls())
        calls.calls += 1
        calls.missed += late
        calls.times[receipt.ttft_ms] += 1


def _count_whole(rows: Iterable[Usage], found: dict[UUID, Calls]) -> None:
    """Count answers that came to their own end. One that its caller cut short says nothing about the model."""
    signers = Signers()
    for row in rows:
        receipt = signers.read(row.prediction_id, row.receipt)
        if receipt is not None and receipt.finish_reason == "stop":
            found.setdefault(row.organization_id, Calls()).calls += 1


def _count_cut_off(
    model: Model, versions: list[UUID], since: datetime, until: datetime, found: dict[UUID, Calls]
) -> None:
    """Count the answers that were free because they met the contract's limit before they were whole."""
    cut = Hold.objects.filter(
        model_id=model.pk, version_id__in=versions, closed_at__gte=since, closed_at__lt=until, state="released"
    ).filter(close_reason=_CUT_OFF)
    others = cut.exclude(organization_id=model.organization_id)
    for organization_id, count in others.values_list("organization_id").annotate(count=Count("id")):
        calls = found.setdefault(organization_id, Calls())
        calls.calls += count
        calls.missed += count


def _versions_of_choices(model: Model) -> list[UUID]:
    found = Version.objects.filter(model=model, contract__output_schema__isnull=False).only("contract")
    return [version.pk for version in found if can_be_promised(version.contract)]


def can_be_promised(contract: Mapping[str, Any] | None) -> bool:
    """Return whether a share of whole answers can be promised: whether no caller makes an answer long at will.

    A message that asks for a long text, list or number would cut its own answer off, and be refunded the rest.
    """
    schema = (contract or {}).get("output_schema")
    return isinstance(schema, dict) and answers_are_choices(schema)


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
