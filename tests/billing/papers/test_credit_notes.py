"""Money that went back has a credit note: it names its receipt, and takes back the tax by rate with the credit."""

from __future__ import annotations

import pytest

from billing.disputes.services import refresh_dispute
from billing.models import Account, Paper, TopUp, TopUpRefund
from billing.papers.credit_notes import _shares, issue_due_credit_notes
from billing.papers.issue import pdf_of
from billing.papers.profiles import ProfileText, save_profile
from billing.papers.statements import organization_statement
from billing.refunds import advance_refund
from devstack.stripe_double import disputes, refunds
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import Organization
from tests.billing.papers.support import make_platform, paid_top_up, receipt_of, text_of
from tests.billing.payments import CENT, nano, open_dispute, refund, spend
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db


def refunded(double: StripeDouble, organization: Organization, cents: int) -> tuple[TopUp, TopUpRefund]:
    """A refund of a payment from Germany."""
    make_platform()
    top_up = paid_top_up(double, organization, country="DE")
    return top_up, refund(organization, top_up, cents)


def tax_of_papers() -> int:
    return sum(Paper.objects.values_list("tax_nano_usd", flat=True))


def test_a_credit_note_takes_back_net_and_tax_of_its_receipt(double: StripeDouble, organization: Organization) -> None:
    top_up, found = refunded(double, organization, 1_000)
    assert issue_due_credit_notes() == 0  # its receipt comes first
    receipt = receipt_of(top_up)
    moved = ProfileText(legal_name="Other Ltd", line1="1 High St", city="London", country="GB")
    save_profile(organization=organization, text=moved, by=None)
    assert (issue_due_credit_notes(), issue_due_credit_notes()) == (1, 0)
    note = Paper.objects.get(kind="credit_note")
    assert (note.corrects, note.subject, note.name[:3]) == (receipt, str(found.pk), "CN-")
    assert (note.total_nano_usd, note.tax_nano_usd) == (-11_900_000_000, -1_900_000_000)
    text = text_of(pdf_of(note))
    assert found.stripe_refund_id is not None
    for words in (f"Corrects {receipt.name}", "Net -10.00", "Tax -1.90", "Total paid back -11.90", "19.0 %", "re_"):
        assert words in text, words
    assert "Other Ltd" not in text  # the parties are the receipt's
    assert tax_of_papers() == nano(Account.Kind.TAX)


def test_a_refund_whose_answer_is_lost_has_no_credit_note_yet(double: StripeDouble, organization: Organization) -> None:
    double.faults.requests = [Fault(FaultKind.DROP_BEFORE_COMMIT, "/v1/refunds", times=3)]
    top_up, found = refunded(double, organization, 1_000)
    receipt_of(top_up)
    assert (found.state, issue_due_credit_notes()) == ("requested", 0)
    advance_refund(refund_id=found.pk)
    assert issue_due_credit_notes() == 1


def test_a_refund_that_was_refused_never_has_a_credit_note(double: StripeDouble, organization: Organization) -> None:
    make_platform()
    top_up = paid_top_up(double, organization, country="DE")
    double.state.of_kind("charge")[0]["disputed"] = True
    assert refund(organization, top_up, 1_000).state == "failed"
    receipt_of(top_up)
    assert issue_due_credit_notes() == 0
    assert not Paper.objects.filter(kind="credit_note").exists()


def test_a_second_paper_cancels_the_note_of_a_refund_that_came_back(
    double: StripeDouble, organization: Organization
) -> None:
    top_up, found = refunded(double, organization, 1_000)
    receipt_of(top_up)
    issue_due_credit_notes()
    note = Paper.objects.get(kind="credit_note")
    before = pdf_of(note)
    assert found.stripe_refund_id is not None
    refunds.fail(double, found.stripe_refund_id)
    advance_refund(refund_id=found.pk)
    assert (issue_due_credit_notes(), issue_due_credit_notes()) == (1, 0)
    cancels = Paper.objects.get(kind="credit_note", corrects=note)
    assert (cancels.total_nano_usd, cancels.tax_nano_usd) == (11_900_000_000, 1_900_000_000)
    text = text_of(pdf_of(cancels))
    for words in ("Cancellation of a credit note", f"Corrects {note.name}", "Net 10.00", "Tax 1.90", "Total 11.90"):
        assert words in text, words
    assert pdf_of(note) == before
    assert tax_of_papers() == nano(Account.Kind.TAX) == 475 * CENT
    shown = organization_statement(organization, cancels.issued_at.date().replace(day=1)).tables[-1]
    assert shown.totals[0][-1] == 2_975 * CENT


def test_a_refund_that_came_back_before_its_note_has_both(double: StripeDouble, organization: Organization) -> None:
    top_up, found = refunded(double, organization, 1_000)
    assert found.stripe_refund_id is not None
    refunds.fail(double, found.stripe_refund_id)
    advance_refund(refund_id=found.pk)
    receipt_of(top_up)
    assert issue_due_credit_notes() == 2
    assert tax_of_papers() == nano(Account.Kind.TAX)


@pytest.mark.parametrize("won", [True, False])
def test_a_lost_dispute_has_a_credit_note_and_one_that_was_won_has_none(
    double: StripeDouble, organization: Organization, won: bool
) -> None:
    make_platform()
    top_up = paid_top_up(double, organization, country="DE")
    receipt = receipt_of(top_up)
    spend(organization, make_organization(), 700 * CENT)
    dispute_id = open_dispute(double, top_up, 1_190)
    refresh_dispute(dispute_id=dispute_id)
    assert issue_due_credit_notes() == 0
    disputes.decide(double, dispute_id, won=won)
    refresh_dispute(dispute_id=dispute_id)
    assert (issue_due_credit_notes(), issue_due_credit_notes()) == ((0, 0) if won else (1, 0))
    if not won:
        note = Paper.objects.get(kind="credit_note")
        assert (note.subject, note.corrects, note.total_nano_usd) == (dispute_id, receipt, -1_190 * CENT)
        assert "by its bank" in text_of(pdf_of(note))
    assert tax_of_papers() == nano(Account.Kind.TAX)


def test_tax_that_goes_back_is_divided_by_rate_to_the_cent() -> None:
    taxes = [{"amount_cents": amount} for amount in (100, 100, 1)]
    for back in range(202):
        shares = _shares(taxes, back)
        assert sum(shares) == back and all(
            0 <= share <= tax["amount_cents"] for share, tax in zip(shares, taxes, strict=True)
        )
    assert _shares([{"amount_cents": 0}], 0) == [0]
