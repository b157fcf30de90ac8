"""A dispute that is lost: who bears it, and how credit that comes back makes it good."""

from __future__ import annotations

import pytest
from django.db import transaction

from billing import tasks
from billing.models import Account, LedgerTransaction
from billing.payouts.books import book_release, book_start
from billing.payouts.reserve import net_debt
from billing.refunds import advance_refund, refundable_cents
from billing.selectors import wallet
from billing.services import correct_prediction, credit_promotion
from devstack.stripe_double import refunds
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Organization
from tests.billing.payments import CENT, assert_books_agree, decided, disputed, nano, paid, refund, spend
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db
Kind = Account.Kind


def test_a_loss_is_borne_by_frozen_credit_tax_payees_and_the_platform(
    double: StripeDouble, organization: Organization
) -> None:
    double.tax_percent = 20
    top_up = paid(double, organization, 1_000)
    rich, poor = make_organization(), make_organization()
    spend(organization, rich, 300 * CENT)
    spend(organization, poor, 100 * CENT)
    with transaction.atomic():  # the poor creator was paid out
        pay_out(poor, 50 * CENT)
    dispute = decided(double, disputed(double, top_up), won=False)
    assert dispute.state == "lost"
    assert nano(Kind.DISPUTE, organization) == nano(Kind.CLEARING) == nano(Kind.TAX) == 0
    assert nano(Kind.CREATOR_RESERVE, rich) == 0  # 240 earned, 240 taken back
    assert (nano(Kind.CREATOR_RESERVE, poor), nano(Kind.RECEIVABLE, poor)) == (0, -50 * CENT)
    assert nano(Kind.LOSSES) == -80 * CENT  # the platform's part of 400
    assert nano(Kind.PLATFORM_REVENUE) == 80 * CENT  # what it earned stays what it earned
    assert wallet(organization).posted == 0
    assert_books_agree()
    spend(make_organization(500 * CENT), poor, 100 * CENT)
    assert net_debt(poor) == 50 * CENT  # later earnings are set against it
    assert nano(Kind.RECEIVABLE, poor) == 0


def pay_out(creator: Organization, nano_usd: int) -> None:
    book_release(creator, f"test {creator.pk}", nano_usd, "")
    book_start(creator, f"test {creator.pk}", nano_usd)


def test_other_paid_credit_of_the_customer_bears_a_loss_before_payees(
    double: StripeDouble, organization: Organization
) -> None:
    top_up, creator = paid(double, organization, 500), make_organization()
    spend(organization, creator, 500 * CENT)
    paid(double, organization, 200)
    paid(double, organization, 900)
    credit_promotion(organization=organization, amount_nano_usd=50 * CENT, reference="gift")
    decided(double, disputed(double, top_up), won=False)
    assert nano(Kind.CREATOR_RESERVE, creator) == 400 * CENT
    assert wallet(organization).posted == (1_100 - 500 + 50) * CENT
    assert nano(Kind.LOSSES) == nano(Kind.CLEARING) == 0
    assert_books_agree()


def test_a_loss_is_divided_among_payees_by_what_the_payment_paid_them(
    double: StripeDouble, organization: Organization
) -> None:
    """Credit of two payments pays one prediction, and a prediction was corrected: only what is left counts."""
    first, creator, other = paid(double, organization, 100), make_organization(), make_organization()
    second = paid(double, organization, 300)
    corrected = spend(organization, other, 60 * CENT)
    spend(organization, creator, 80 * CENT)  # 40 of each payment
    correct_prediction(prediction_id=corrected, amount_nano_usd=20 * CENT, reason="test")
    spend(organization, creator, 260 * CENT)  # what came back, and 240 of the second payment
    correct_prediction(prediction_id=spend(make_organization(CENT), other, CENT), reason="test")
    dispute = decided(double, disputed(double, first, 50), won=False)
    assert (dispute.frozen_nano_usd, wallet(organization).posted) == (0, 0)
    # 20 of the second payment are set off, so 30 are borne by those who earned the first: 32, 48 and 20 of its 100.
    assert nano(Kind.CREATOR_RESERVE, other) * 10 == (320 - 96) * CENT
    assert nano(Kind.CREATOR_RESERVE, creator) * 10 == (640 + 2_080 - 144) * CENT
    assert nano(Kind.LOSSES) == -6 * CENT
    assert refundable_cents(second) == 0
    assert_books_agree()


def test_credit_that_comes_back_after_a_loss_makes_it_good(double: StripeDouble, organization: Organization) -> None:
    """A refund that the bank sends back, and a correction of a prediction that the lost payment paid for."""
    top_up, creator = paid(double, organization, 1_000), make_organization()
    prediction = spend(organization, creator, 400 * CENT)
    sent = refund(organization, top_up, 600)
    dispute = decided(double, disputed(double, top_up), won=False)
    # The refund had left, so of 1,000 only 400 could be disputed credit: creator 320, platform 80, and 600 paid twice.
    assert (nano(Kind.CREATOR_RESERVE, creator), nano(Kind.LOSSES)) == (0, -680 * CENT)
    assert sent.stripe_refund_id is not None
    refunds.fail(double, sent.stripe_refund_id)
    advance_refund(refund_id=sent.pk)
    assert wallet(organization).posted == 600 * CENT
    tasks.take_disputed_credit()
    assert wallet(organization).posted == 0
    assert (nano(Kind.CREATOR_RESERVE, creator), nano(Kind.LOSSES)) == (192 * CENT, -272 * CENT)
    correct_prediction(prediction_id=prediction, reason="test")
    for _ in range(2):
        tasks.take_disputed_credit()
    assert wallet(organization).posted == 0
    # The payment is gone, and so is the prediction: who had it neither earned nor lost, but for what was corrected.
    assert nano(Kind.CREATOR_RESERVE, creator) + nano(Kind.RECEIVABLE, creator) == 0
    assert nano(Kind.LOSSES) == nano(Kind.CLEARING) == nano(Kind.PLATFORM_REVENUE) == 0
    assert LedgerTransaction.objects.filter(kind="dispute_recovered").count() == 2
    assert dispute.state == "lost"
    assert_books_agree()


def test_the_undisputed_rest_of_a_payment_stays_the_customer_s(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = paid(double, organization, 1_000)
    decided(double, disputed(double, top_up, 400), won=False)
    tasks.take_disputed_credit()
    assert wallet(organization).posted == 600 * CENT
    assert not LedgerTransaction.objects.filter(kind="dispute_recovered").exists()


@pytest.mark.parametrize(
    ("released", "reserve", "payable"), [(0, 160, 0), (100, 60, 100), (160, 0, 160), (240, 0, 160)]
)
def test_a_payee_gives_its_reserve_first_and_then_what_is_payable_and_others_give_nothing(
    double: StripeDouble, organization: Organization, released: int, reserve: int, payable: int
) -> None:
    top_up, creator, other = paid(double, organization, 100), make_organization(), make_organization()
    spend(organization, creator, 100 * CENT)
    rich = make_organization(1_000 * CENT)
    spend(rich, creator, 200 * CENT)  # 80 cents were earned with the payment, and 160 with other credit
    spend(rich, other, 100 * CENT)
    if released:
        with transaction.atomic():
            book_release(creator, "matured", released * CENT, "")
    decided(double, disputed(double, top_up), won=False)
    assert nano(Kind.CREATOR_RESERVE, creator) == reserve * CENT
    assert nano(Kind.CREATOR_PAYABLE, creator) == payable * CENT
    assert nano(Kind.RECEIVABLE, creator) == 0 and nano(Kind.CREATOR_RESERVE, other) == 80 * CENT
    assert nano(Kind.LOSSES) == -20 * CENT
    assert_books_agree()
