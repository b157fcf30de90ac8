"""What the books say of a charge, as a receipt states it (protocol/proofs/charges.py).

The one place that reads a prediction's terms. The same rows always give the same statement: nothing in it may change
after the settlement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from billing.models import Hold, Refund, Usage
from billing.pricing import Price, TokenUsage, cost_nano_usd
from marketplace.vault.models import Replica
from protocol.encoding import encode_base64url
from protocol.proofs.charges import BPS, Charge, ChargePrice, Correction, Share
from protocol.receipts import ReceiptRejected, receipt_replica_id

LATENCY_CLASS: Final = "standard"  # of every prediction so far, at the list price


def charges_of(rows: Sequence[Usage]) -> dict[UUID, Charge]:
    """Return the statements of these charges by prediction. Those from before grants were kept have none."""
    holds = Hold.objects.in_bulk([row.prediction_id for row in rows])
    signers = _signers(rows)
    found = {}
    for row in rows:
        hold = holds.get(row.prediction_id)
        if hold is not None and hold.base and hold.replica_id is not None:
            found[row.prediction_id] = _charge(row, hold, signers)
    return found


def corrections_of(charge: Usage) -> list[Correction]:
    """Return what was given back of a charge so far, oldest first."""
    return [
        Correction(
            version=1,
            prediction_id=str(charge.prediction_id),
            correction="refund",
            amount_nano_usd=charge.cost_nano_usd,
            reason=refund.reason,
            corrected_at=micros(refund.created_at),
        )
        for refund in Refund.objects.filter(prediction_id=charge.prediction_id)
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


def _charge(row: Usage, hold: Hold, signers: dict[UUID, str]) -> Charge:
    price = Price(
        row.input_micro_usd_per_mtok,
        row.cached_input_micro_usd_per_mtok,
        row.output_micro_usd_per_mtok,
        row.per_prediction_nano_usd,
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
        latency_class=LATENCY_CLASS,
        class_bps=BPS,
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
        allowance_nano_usd=0,
        held_nano_usd=hold.amount_nano_usd,
        cost_nano_usd=row.cost_nano_usd,
        split=_split(row),
        replica_id=str(hold.replica_id),
        adapter=hold.adapter,
        base=hold.base,
        max_prompt_tokens=hold.max_prompt_tokens,
        max_completion_tokens=hold.max_tokens,
        signer_id=str(signer) if signer in signers else None,
        signer_key=signers.get(signer) if signer is not None else None,
        replica_receipt=row.receipt,
    )


def _split(row: Usage) -> tuple[Share, ...]:
    creator = Share(
        payee=str(row.creator_organization_id),
        basis_points=row.creator_bps,
        reason="creator",
        nano_usd=row.creator_nano_usd,
    )
    platform = Share(payee=None, basis_points=BPS - row.creator_bps, reason="platform", nano_usd=row.platform_nano_usd)
    return creator, platform
