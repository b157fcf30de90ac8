"""A refund has a credit note: it names its receipt, and takes back the tax by rate with the credit."""

from __future__ import annotations

import pytest

from billing.models import LedgerTransaction, Paper, TopUp, TopUpRefund
from billing.papers.credit_notes import _shares, issue_due_credit_notes
from billing.papers.issue import pdf_of
from billing.papers.profiles import ProfileText, save_profile
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.papers.support import make_platform, paid_top_up, receipt_of, text_of

pytestmark = pytest.mark.django_db


def refund_of(top_up: TopUp, *, cents: int, tax_cents: int, state: str) -> TopUpRefund:
    """A refund as the books know it; which transaction moved it is nothing to its paper."""
    moved = LedgerTransaction.objects.get(kind="top_up", reference=str(top_up.pk))
    return TopUpRefund.objects.create(
        top_up=top_up,
        amount_cents=cents,
        tax_cents=tax_cents,
        state=state,
        stripe_refund_id="re_1",
        ledger_transaction=moved,
    )


def test_a_credit_note_takes_back_net_and_tax_of_its_receipt(double: StripeDouble, organization: Organization) -> None:
    make_platform()
    top_up = paid_top_up(double, organization, country="DE")
    refund = refund_of(top_up, cents=1_000, tax_cents=190, state="sent")
    assert issue_due_credit_notes() == 0  # its receipt comes first
    receipt = receipt_of(top_up)
    moved = ProfileText(legal_name="Other Ltd", line1="1 High St", city="London", country="GB")
    save_profile(organization=organization, text=moved, by=None)
    assert (issue_due_credit_notes(), issue_due_credit_notes()) == (1, 0)
    note = Paper.objects.get(kind="credit_note")
    assert (note.corrects, note.subject, note.name[:3]) == (receipt, str(refund.pk), "CN-")
    assert (note.total_nano_usd, note.tax_nano_usd) == (-11_900_000_000, -1_900_000_000)
    text = text_of(pdf_of(note))
    for words in (f"Corrects {receipt.name}", "Net -10.00", "Tax -1.90", "Total paid back -11.90", "19.0 %", "re_1"):
        assert words in text, words
    assert "Other Ltd" not in text  # the parties are the receipt's


@pytest.mark.parametrize("state", ["requested", "failed"])
def test_a_refund_that_has_not_left_has_no_credit_note(
    double: StripeDouble, organization: Organization, state: str
) -> None:
    make_platform()
    top_up = paid_top_up(double, organization, country="DE")
    receipt_of(top_up)
    refund_of(top_up, cents=1_000, tax_cents=190, state=state)
    assert issue_due_credit_notes() == 0
    assert not Paper.objects.filter(kind="credit_note").exists()


def test_tax_that_goes_back_is_divided_by_rate_to_the_cent() -> None:
    taxes = [{"amount_cents": amount} for amount in (100, 100, 1)]
    for back in range(202):
        shares = _shares(taxes, back)
        assert sum(shares) == back and all(
            0 <= share <= tax["amount_cents"] for share, tax in zip(shares, taxes, strict=True)
        )
    assert _shares([{"amount_cents": 0}], 0) == [0]
