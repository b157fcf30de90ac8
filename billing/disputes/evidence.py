"""Evidence for a dispute: texts and files that the platform's staff hand to the bank, once, before its deadline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction

from billing.disputes.selectors import dispute_by_id, takes_evidence
from billing.disputes.services import take_dispute
from billing.errors import EvidenceRefused
from billing.models import Dispute
from billing.stripe import StripeGateway, stripe_gateway
from marketplace.accounts import audit

# Stripe's names of the parts that fit prepaid predictions, and what the page calls them.
TEXTS = {
    "product_description": "The product",
    "customer_name": "Name of the customer",
    "customer_email_address": "E-mail address of the customer",
    "access_activity_log": "Use of the credit: times, models, numbers of predictions",
    "service_date": "Last day on which the credit was used",
    "refund_policy_disclosure": "How the customer was told about refunds",
    "refund_refusal_explanation": "Why no refund is due",
    "cancellation_rebuttal": "Why a cancellation does not apply",
    "uncategorized_text": "Anything else",
}
FILES = {
    "receipt": "Receipt",
    "customer_communication": "Letters with the customer",
    "service_documentation": "Proof that predictions were delivered",
    "uncategorized_file": "Another document",
}
MAX_TEXT = 20_000  # characters of one text, and of all together: Stripe's limits
MAX_TEXTS = 150_000
MAX_FILES_BYTES = 4_500_000  # of all files together; banks take no more
_TYPES = {b"%PDF-": "pdf", b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg"}


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """One file as it was uploaded; its type is read from its content, never from its name."""

    content: bytes

    @property
    def extension(self) -> str:
        """Return pdf, png or jpg, or "" for a file that banks do not take."""
        return next((name for start, name in _TYPES.items() if self.content.startswith(start)), "")


def submit_evidence(
    *,
    dispute_id: str,
    texts: Mapping[str, str],
    files: Mapping[str, EvidenceFile],
    gateway: StripeGateway | None = None,
) -> Dispute:
    """Hand evidence to the bank: texts by a key of `TEXTS`, files by a key of `FILES`. It can be sent once.

    The caller has checked that the user is the platform's staff. A retry with the same content after a lost answer
    sends nothing twice. Raises DisputeNotFound, EvidenceRefused, PaymentProviderUnavailable.
    """
    dispute = dispute_by_id(dispute_id)
    if not takes_evidence(dispute):
        raise EvidenceRefused("the bank takes no evidence now: it was sent, the deadline is over, or it has decided")
    given = {name: text.strip() for name, text in texts.items() if text.strip()}
    _check(given, files)
    gateway = gateway or stripe_gateway()
    for name, file in sorted(files.items()):
        digest = hashlib.sha256(file.content).hexdigest()
        given[name] = gateway.disputes.upload(
            key=f"{dispute.pk}:{digest}", name=f"{name}.{file.extension}", content=file.content
        )
    key = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    found = gateway.disputes.submit(dispute.pk, key=f"{dispute.pk}:{key}", evidence=given)
    with transaction.atomic():
        parts = {"parts": " ".join(sorted([*texts, *files]))}
        audit.record(organization=dispute.top_up.organization, act="dispute.answered", subject=dispute.pk, data=parts)
        return take_dispute(found=found, top_up_id=dispute.top_up_id)


def _check(texts: Mapping[str, str], files: Mapping[str, EvidenceFile]) -> None:
    if not texts and not files:
        raise EvidenceRefused("evidence has at least one text or file")
    for name, text in texts.items():
        if name not in TEXTS:
            raise EvidenceRefused("there is no such text of evidence", field=name[:64])
        if len(text) > MAX_TEXT:
            raise EvidenceRefused(f"a text has at most {MAX_TEXT:,} characters", field=name)
    if sum(map(len, texts.values())) > MAX_TEXTS:
        raise EvidenceRefused(f"all texts together have at most {MAX_TEXTS:,} characters", field="texts")
    for name, file in files.items():
        if name not in FILES:
            raise EvidenceRefused("there is no such file of evidence", field=name[:64])
        if not file.extension:
            raise EvidenceRefused("a file of evidence is a PDF, PNG or JPEG", field=name)
    if sum(len(file.content) for file in files.values()) > MAX_FILES_BYTES:
        raise EvidenceRefused("all files together have at most 4.5 MB: banks take no more", field="files")
