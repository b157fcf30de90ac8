"""Reads: an organization's receipts, and what is public: heads, and proofs that a tree only grew."""

from __future__ import annotations

from datetime import UTC, date
from uuid import UUID

import msgspec
from django.conf import settings

from billing.ledger import record_incident
from billing.models import Incident, Usage
from billing.retention import details_kept_since, is_dropped
from billing.selectors import usage_row
from marketplace.accounts.errors import InvalidInput, NotFound
from marketplace.accounts.models import Organization
from marketplace.receipts import trees
from marketplace.receipts.charges import charges_of, corrections_of
from marketplace.receipts.errors import NoReceipt, ReceiptContradicted
from marketplace.receipts.keys import receipt_signer
from marketplace.receipts.models import Head
from protocol.encoding import encode_base64url
from protocol.proofs.charges import Charge
from protocol.proofs.documents import DOCUMENT_FORMAT, Inclusion, ReceiptDocument
from protocol.proofs.merkle import consistency_path, inclusion_path, leaf_hash

MAX_HEADS = 500


def receipt_document(organization: Organization, prediction_id: UUID) -> bytes:
    """Return the receipt of one of the organization's charges, signed now: a file for `intarsia receipt verify`.

    Raises NoReceipt, NotBootstrapped, and ReceiptContradicted if the books no longer say what was published.
    """
    row = usage_row(organization, prediction_id)
    charge = charges_of([row]).get(prediction_id) if row is not None else None
    if row is None and is_dropped(organization, prediction_id):
        raise NoReceipt(dropped_text())
    if row is None or charge is None:
        raise NoReceipt("the organization has no receipt of this number")
    signer = receipt_signer()
    document = ReceiptDocument(
        format=DOCUMENT_FORMAT,
        platform=settings.PUBLIC_URL,
        charge=signer.sign(charge.payload(), "intarsia-charge"),
        corrections=tuple(signer.sign(msgspec.json.encode(one), "intarsia-correction") for one in corrections_of(row)),
        inclusion=_inclusion(row, charge),
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def dropped_text() -> str:
    """Return what to say to somebody who asks for a charge of which only the sums are left."""
    return (
        f"Single predictions from before {details_kept_since():%Y-%m-%d} are not kept any more. Their sums, papers and "
        "published roots are, and a receipt that was saved still verifies."
    )


def _inclusion(row: Usage, charge: Charge) -> Inclusion | None:
    day = row.created_at.astimezone(UTC).date()
    place = trees.place_of(day, row.prediction_id, row.created_at)
    if place is None:
        return None
    index, leaf = place
    if leaf != leaf_hash(charge.payload()):
        detail = {"rule": "tree", "day": day.isoformat(), "index": index}
        record_incident(kind=Incident.Kind.RECEIPT_MISMATCH, subject=str(row.prediction_id), detail=detail)
        raise ReceiptContradicted(f"the charge of prediction {row.prediction_id} is not the one that was published")
    head = Head.objects.filter(day=day, size__gt=index).order_by("-size").first()
    if head is None:
        return None
    path = inclusion_path(index, head.size, trees.range_hash(day, head.size))
    return Inclusion(head=head.statement, index=index, path=tuple(map(encode_base64url, path)))


def heads(*, after: int = 0) -> list[Head]:
    """Return published heads from the one that follows number `after`, at most `MAX_HEADS`."""
    return list(Head.objects.filter(sequence__gt=after).order_by("sequence")[:MAX_HEADS])


def latest_heads(limit: int) -> list[Head]:
    """Return the last head of each of the newest days, newest first."""
    newest = Head.objects.order_by("-day", "-size").distinct("day")
    return list(newest[:limit])


def consistency(day: date, first: int, second: int) -> list[str]:
    """Return the proof that the day's tree of `first` leaves is the beginning of that of `second`, in base64url.

    Raises NotFound unless heads of both sizes are published, InvalidInput unless the first is the smaller one.
    """
    if not 0 < first <= second:
        raise InvalidInput("first: must be from 1 to second", field="first")
    if Head.objects.filter(day=day, size__in={first, second}).count() != len({first, second}):
        raise NotFound("there are no published heads of these sizes")
    return [encode_base64url(one) for one in consistency_path(first, second, trees.range_hash(day, second))]
