"""Writes: a promise from the next month on, the judgement of a month that is over, and its refunds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from uuid import UUID, uuid5

from django.db import IntegrityError, transaction
from django.db.models.functions import Now
from django.utils import timezone

from billing.models import Correction
from billing.share_refunds import ChargeLeft, charges_left, refund_share
from marketplace.accounts import audit
from marketplace.accounts.errors import InvalidInput
from marketplace.alerts.services import tell
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Model
from marketplace.promises import letters, policy
from marketplace.promises.errors import NothingToPromise
from marketplace.promises.measuring import (
    Calls,
    Measured,
    Signers,
    bounds_of,
    can_be_promised,
    is_late,
    measure,
    next_month,
)
from marketplace.promises.models import Month, Promise, PromiseKind, Refund
from marketplace.promises.selectors import promise_of_month

logger = logging.getLogger(__name__)

SETTLED_FOR = timedelta(days=1)  # after a month's end: by then every hold of it is closed
MOST_MONTHS_BACK = 12  # single predictions of the last 13 whole months are always kept
_LIMITS = {
    PromiseKind.TTFT: (policy.MIN_TTFT_MS, policy.MAX_TTFT_MS),
    PromiseKind.VALID: (policy.MIN_VALID_BPS, policy.MAX_VALID_BPS),
}


@transaction.atomic
def set_promise(*, model: Model, kind: PromiseKind, bound: int | None) -> Promise:
    """Promise `bound` from the next month (UTC) on, or None: promise nothing any more from then on.

    Raises InvalidInput for a bound out of its range, and NothingToPromise for answers that are not choices of a schema.
    """
    least, most = _LIMITS[kind]
    if bound is not None and not least <= bound <= most:
        raise InvalidInput(f"the bound must be from {least} to {most}", field="bound")
    if bound is not None and kind == PromiseKind.VALID and not _has_choices(model):
        raise NothingToPromise(
            "a share of whole answers is promised of a version for sale whose contract has an output schema of choices "
            "alone: an enum, a const, a boolean, and closed objects of these. How long a text, a list or a number gets "
            "is up to whoever asks"
        )
    made = {"kind": str(kind), "bound": bound}
    audit.record(organization=model.organization, act="promise.set", subject=model.slug, data=made)
    return Promise.objects.create(model=model, kind=kind, bound=bound, starts_on=next_month(timezone.now().date()))


def keep_promises(*, now: datetime | None = None) -> int:
    """Judge every month that is over and was not judged, and pay its refunds. Returns the number of months judged.

    Idempotent, and may be killed anywhere: a month and its refunds are decided in one transaction, and each refund of
    a settlement has an id that follows from both. The refunds of one promise are paid before the next is judged, so
    that two together never give back more than was paid.
    """
    _pay_all()
    judged = 0
    for promise, month in list(_due(now or timezone.now())):
        judged += _judge(promise, month)
        _pay_all()
    return judged


def pay_refund(refund: Refund) -> int:
    """Give back what is missing of a refund, settlement by settlement. Returns what was given back in all."""
    since, until = bounds_of(refund.month.month)
    charges = charges_left(
        organization_id=refund.organization_id,
        model_id=refund.month.model_id,
        since=since,
        until=until,
        bearer_id=refund.bearer_id,
    )
    ids = {charge.prediction_id: uuid5(refund.pk, str(charge.prediction_id)) for charge in charges}
    paid = dict(Correction.objects.filter(pk__in=ids.values()).values_list("prediction_id", "amount_nano_usd"))
    missing = refund.amount_nano_usd - sum(paid.values())
    for charge in _missed_first(charges, refund.month.promise):
        if missing <= 0:
            break
        if charge.prediction_id not in paid and charge.share_nano_usd > 0:
            missing -= _pay_charge(charge, ids[charge.prediction_id], missing, refund)
    total = refund.amount_nano_usd - missing
    _close(refund, total)
    return total


def _due(now: datetime) -> Iterator[tuple[Promise, date]]:
    """Yield each promise with each month in which it was in force, is over and was not judged, the oldest first."""
    ended = (now - SETTLED_FOR).date().replace(day=1)
    first = date(ended.year - 1, ended.month, 1)
    judged = set(Month.objects.filter(month__gte=first).values_list("model_id", "kind", "month"))
    pairs = Promise.objects.filter(starts_on__lt=ended).values_list("model_id", "kind").distinct()
    due = []
    for model_id, kind in pairs:
        month = first
        while month < ended:
            promise = promise_of_month(model_id, kind, month)
            if promise is not None and promise.bound is not None and (model_id, kind, month) not in judged:
                due.append((month, str(model_id), kind, promise))
            month = next_month(month)
    # Valid answers before times: the creator's refund is out of a share that the platform's does not touch.
    for month, _, _, promise in sorted(due, key=lambda one: (one[0], one[1], one[2] != PromiseKind.VALID)):
        yield promise, month


def _judge(promise: Promise, month: date) -> bool:
    """Measure a month and decide its refunds. False: another worker did."""
    found = measure(promise, month)
    try:
        with transaction.atomic():
            row = Month.objects.create(
                promise=promise,
                model=promise.model,
                kind=promise.kind,
                month=month,
                calls=found.calls,
                missed=found.missed,
                value=found.value(promise.kind),
            )
            Refund.objects.bulk_create(_refunds(row, found))
    except IntegrityError:
        return False
    return True


def _refunds(row: Month, found: Measured) -> Iterator[Refund]:
    promise, (since, until) = row.promise, bounds_of(row.month)
    allowed = policy.allowed_bps(row.kind, promise.bound or 0)  # type: ignore[arg-type]
    bearer = promise.model.organization_id if row.kind == PromiseKind.VALID else None
    for organization_id, calls in found.by_consumer.items():
        bps = policy.refund_bps(calls=calls.calls, missed=calls.missed, allowed=allowed)
        if not bps:
            continue
        charges = charges_left(
            organization_id=organization_id, model_id=row.model_id, since=since, until=until, bearer_id=bearer
        )
        if refund := _refund(row, organization_id, bearer, calls, bps, charges):
            yield refund


def _refund(
    row: Month, organization_id: UUID, bearer: UUID | None, calls: Calls, bps: int, charges: list[ChargeLeft]
) -> Refund | None:
    spent = sum(charge.cost_nano_usd for charge in charges)
    share = sum(charge.share_nano_usd for charge in charges)
    amount = policy.refund_nano_usd(spent=spent, share=share, bps=bps)
    if not amount:
        return None
    return Refund(
        month=row,
        organization_id=organization_id,
        bearer_id=bearer,
        calls=calls.calls,
        missed=calls.missed,
        spent_nano_usd=spent,
        refund_bps=bps,
        amount_nano_usd=amount,
    )


def _pay_all() -> None:
    waiting = Refund.objects.filter(paid_at=None).select_related("month__promise__model__organization", "organization")
    for refund in waiting.order_by("id"):
        pay_refund(refund)


def _pay_charge(charge: ChargeLeft, correction_id: UUID, missing: int, refund: Refund) -> int:
    back = refund_share(
        prediction_id=charge.prediction_id,
        most_nano_usd=missing,
        reason=letters.reason(refund.month),
        correction_id=correction_id,
        bearer_id=refund.bearer_id,
    )
    if back:
        return back
    # Another worker was here first, or somebody else's correction took the share.
    earlier = Correction.objects.filter(pk=correction_id).values_list("amount_nano_usd", flat=True).first()
    return earlier or 0


def _missed_first(charges: list[ChargeLeft], promise: Promise) -> list[ChargeLeft]:
    """Order settlements as they are refunded: late ones first, then the dearest. (An invalid answer cost nothing.)"""
    if promise.kind != PromiseKind.TTFT:
        return charges
    signers, late = Signers(), set()
    for charge in charges:
        receipt = signers.read(charge.prediction_id, charge.receipt)
        if receipt is not None and is_late(receipt, promise.bound or 0):
            late.add(charge.prediction_id)
    return sorted(charges, key=lambda charge: charge.prediction_id not in late)


def _close(refund: Refund, total: int) -> None:
    """Note what was paid, and tell both sides in the same transaction, once."""
    with transaction.atomic():
        if not Refund.objects.filter(pk=refund.pk, paid_at=None).update(paid_nano_usd=total, paid_at=Now()):
            return
        for letter in letters.letters_of(refund, total):
            tell(
                organization_id=letter.organization_id,
                kind=letter.kind,
                once=str(refund.pk),
                subject=letter.subject,
                text=letter.text,
                data=letter.data,
            )
    logger.info("refund %s: %d of %d nano-dollars", refund.pk, total, refund.amount_nano_usd)


def _has_choices(model: Model) -> bool:
    version = catalog.default_version(model=model)
    contract = version.contract if version is not None else None
    return can_be_promised(contract)
