"""Evidence for disputes against the double: what banks take, once, before their deadline."""

from __future__ import annotations

import pytest

from billing.disputes.evidence import MAX_FILES_BYTES, MAX_TEXT, EvidenceFile, submit_evidence
from billing.disputes.selectors import takes_evidence
from billing.disputes.services import refresh_dispute
from billing.errors import DisputeNotFound, EvidenceRefused
from billing.selectors import wallet
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import Organization
from tests.billing.payments import CENT, disputed, paid

pytestmark = pytest.mark.django_db
PNG = b"\x89PNG\r\n\x1a\n" + bytes(64)


def test_evidence_wins_a_dispute_and_is_sent_once(double: StripeDouble, organization: Organization) -> None:
    dispute = disputed(double, paid(double, organization))
    texts = {"uncategorized_text": "winning_evidence", "customer_name": "  "}
    files = {"receipt": EvidenceFile(b"%PDF-1.7 receipt"), "service_documentation": EvidenceFile(PNG)}
    double.faults.requests = [Fault(FaultKind.DROP_AFTER_COMMIT, "/v1/files", times=1)]
    found = submit_evidence(dispute_id=dispute.pk, texts=texts, files=files)
    assert (found.state, found.status) == ("won", "won") and found.evidence_sent_at is not None
    evidence = double.state.objects[dispute.pk]["evidence"]
    assert evidence["receipt"].startswith("file_") and evidence["customer_name"] is None
    assert len(double.state.of_kind("file")) == 2
    assert wallet(organization).posted == 2_500 * CENT
    with pytest.raises(EvidenceRefused):
        submit_evidence(dispute_id=dispute.pk, texts=texts, files={})


@pytest.mark.parametrize(
    ("texts", "files"),
    [
        ({}, {}),
        ({"uncategorized_text": "   "}, {}),
        ({"shipping_carrier": "x"}, {}),
        ({"uncategorized_text": "x" * (MAX_TEXT + 1)}, {}),
        ({}, {"receipt": EvidenceFile(b"GIF89a")}),
        ({}, {"receipt": EvidenceFile(b"")}),
        ({}, {"customer_signature": EvidenceFile(PNG)}),
        ({}, {"receipt": EvidenceFile(PNG + bytes(MAX_FILES_BYTES))}),
    ],
)
def test_evidence_that_banks_do_not_take_is_refused_before_stripe_is_asked(
    double: StripeDouble, organization: Organization, texts: dict[str, str], files: dict[str, EvidenceFile]
) -> None:
    dispute = disputed(double, paid(double, organization))
    with pytest.raises(EvidenceRefused):
        submit_evidence(dispute_id=dispute.pk, texts=texts, files=files)
    assert double.state.of_kind("file") == []
    dispute.refresh_from_db()
    assert dispute.evidence_sent_at is None and takes_evidence(dispute)


def test_evidence_for_no_dispute_or_a_late_one_is_refused(double: StripeDouble, organization: Organization) -> None:
    with pytest.raises(DisputeNotFound):
        submit_evidence(dispute_id="dp_none", texts={"uncategorized_text": "x"}, files={})
    dispute = disputed(double, paid(double, organization))
    double.state.objects[dispute.pk]["evidence_details"]["due_by"] = 1
    refresh_dispute(dispute_id=dispute.pk)
    with pytest.raises(EvidenceRefused):
        submit_evidence(dispute_id=dispute.pk, texts={"uncategorized_text": "x"}, files={})
    assert double.state.objects[dispute.pk]["evidence_details"]["submission_count"] == 0
