"""The books' statement of a charge, as a receipt states it (protocol/proofs/charges.py).

The one place that reads a prediction's terms. The same rows always give the same statement: nothing in it may change
after the settlement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from billing import models as books
from billing.models import Hold, SplitPart, Usage
from billing.pricing import Price, TokenUsage, cost_nano_usd, shares
from marketplace.vault.models import Replica
from protocol.encoding import encode_base64url
from protocol.latency import LatencyClass
from protocol.proofs.charges import Charge, ChargePrice, Correction, Share
from protocol.receipts import ReceiptRejected, receipt_replica_id


def charges_of(rows: Sequence[Usage]) -> dict[UUID, Charge]:
    """Return the statements of these charges by prediction. Those from before grants were kept have none."""
    holds = Hold.objects.in_bulk([row.prediction_id for row in rows])
    signers = _signers(rows)
    parts: dict[int, list[SplitPart]] = {}
    for part in SplitPart.objects.filter(split_id__in={row.split_id for row in rows}).order_by("split_id", "place"):
        parts.setdefault(part.split_id, []).append(part)
    found = {}
    for row in rows:
        hold = holds.get(row.prediction_id)
        if hold is not None and hold.base and hold.replica_id is not None:
            found[row.prediction_id] = _charge(row, hold, signers, parts[row.split_id])
    return found


def corrections_of(charge: Usage) -> list[Correction]:
    """Return what was given back of a charge so far, oldest first."""
    return [
        Correction(
            version=1,
            prediction_id=str(charge.prediction_id),
            correction=str(correction.pk),
            amount_nano_usd=correction.amount_nano_usd,
            reason=correction.reason,
            corrected_at=micros(correction.created_at),
        )
        for correction in books.Correction.objects.filter(prediction_id=charge.prediction_id).order_by("created_at")
    ]


def micros(moment: datetime) -> int:
    """Return unix microseconds."""
    return int(moment.timestamp()) * 10**6 + moment.microsecond


def _signers(rows: Iterable[Usage]) -> dict[UUID, str]:
    """Return the keys of the boots that say they signed these receipts, in base64url by replica id."""
    named = {signer for row in rows if (signer := _signer(row.receipt)) is not None}
    boots = Replica.objects.filter(pk__in=named).values_list("pk", "receipt_public_key")
    return {replica_id: encode_base64url(bytes(key)) for replica_id, key in boots}


def _signer(receipt: str) -> UUID | None:
    try:
        return receipt_replica_id(receipt)
    except ReceiptRejected:
        return None


def _charge(row: Usage, hold: Hold, signers: dict[UUID, str], parts: Sequence[SplitPart]) -> Charge:
    price = Price(
        row.input_micro_usd_per_mtok,
        row.cached_input_micro_usd_per_mtok,
        row.output_micro_usd_per_mtok,
        row.per_prediction_nano_usd,
        row.class_bps,
    )
    signer = _signer(row.receipt)
    return Charge(
        version=1,
        prediction_id=str(row.prediction_id),
        attempt=hold.attempt,
        organization_id=str(row.organization_id),
        model=row.model_name,
        model_id=str(row.model_id),
        model_version_id=str(row.version_id) if row.version_id else None,
        request_sha256=encode_base64url(bytes(hold.request_hash)),
        placed_at=micros(hold.created_at),
        charged_at=micros(row.created_at),
        latency_class=msgspec.convert(row.latency_class, LatencyClass),
        class_bps=row.class_bps,
        price=ChargePrice(
            input_micro_usd_per_mtok=price.input_micro_usd_per_mtok,
            cached_input_micro_usd_per_mtok=price.cached_input_micro_usd_per_mtok,
            output_micro_usd_per_mtok=price.output_micro_usd_per_mtok,
            per_prediction_nano_usd=price.per_prediction_nano_usd,
        ),
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
        gross_nano_usd=cost_nano_usd(price, TokenUsage(row.prompt_tokens, row.cached_tokens, row.completion_tokens)),
        allowance_nano_usd=row.allowance_nano_usd,
        held_nano_usd=hold.amount_nano_usd,
        cost_nano_usd=row.cost_nano_usd,
        split=_split(row, parts),
        replica_id=str(hold.replica_id),
        adapter=hold.adapter,
        base=hold.base,
        max_prompt_tokens=hold.max_prompt_tokens,
        max_completion_tokens=hold.max_tokens,
        signer_id=str(signer) if signer in signers else None,
        signer_key=signers.get(signer) if signer is not None else None,
        replica_receipt=row.receipt,
    )


def _split(row: Usage, parts: Sequence[SplitPart]) -> tuple[Share, ...]:
    """Return the shares of the charge as they were booked, payees first; the platform has what is left."""
    payees = [part for part in parts if part.organization_id is not None]
    amounts, platform = shares(row.cost_nano_usd, [part.basis_points for part in payees])
    platform_bps = sum(part.basis_points for part in parts if part.organization_id is None)
    return (
        *(
            Share(payee=str(part.organization_id), basis_points=part.basis_points, reason=part.reason, nano_usd=amount)
            for part, amount in zip(payees, amounts, strict=True)
        ),
        Share(payee=None, basis_points=platform_bps, reason="platform", nano_usd=platform),
    )
