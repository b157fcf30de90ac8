"""Refunds of top-ups and disputes on their pages: for the customer who paid, and for the staff who answer banks."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
from allauth.mfa.models import Authenticator
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from billing.auto_top_ups import charge_if_low
from billing.disputes.services import refresh_dispute
from billing.models import Dispute, TopUp, TopUpRefund
from billing.refunds import advance_refund
from billing.selectors import wallet
from devstack.stripe_double import disputes
from devstack.stripe_double import refunds as at_stripe
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.web import queries
from tests.billing.conftest import double
from tests.billing.payments import open_dispute, paid, spend
from tests.billing.test_cards import rule
from tests.billing.test_incidents import code_of
from tests.billing.top_ups import begin
from tests.marketplace.web.conftest import World

__all__ = ["double"]  # the fixture
WALLET = "/dashboard/wallet"
CENT = 10**7


@pytest.fixture
def buyer(world: World, double: StripeDouble) -> Client:
    return world.client(world.consumer)


@pytest.fixture
def staff(world: World) -> Client:
    return world.client(world.staff)


def text(answer) -> str:  # type: ignore[no-untyped-def]  # Django's test response
    return " ".join(answer.content.decode().split())


def page_of(top_up: TopUp) -> str:
    return reverse("web:top_up", args=[top_up.pk])


def form_of(client: Client, top_up: TopUp) -> dict[str, str]:
    """The hidden fields of the refund form, as the browser sends them."""
    found = re.search(r'name="request_id" value="([^"]+)"', text(client.get(page_of(top_up))))
    assert found is not None
    return {"request_id": found[1]}


def test_unspent_credit_is_refunded_from_the_page_of_its_payment(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    double.tax_percent = 20
    top_up = paid(double, world.buyer, 5_000)
    before = wallet(world.buyer).posted
    assert f'href="{page_of(top_up)}#refund">Refund' in text(buyer.get(WALLET))
    page = text(buyer.get(page_of(top_up)))
    assert "Up to <strong>$50.00</strong>" in page and "with $10.00 of tax" in page and 'value="50.00"' in page
    page = text(buyer.post(page_of(top_up), form_of(buyer, top_up) | {"amount": "12.34"}, follow=True))
    assert "$14.81 is on its way to your card." in page and "Up to <strong>$37.66</strong>" in page
    assert wallet(world.buyer).posted == before - 1_234 * CENT
    assert "$12.34 refunded" in text(buyer.get(WALLET))


def test_two_clicks_are_one_refund(world: World, buyer: Client, double: StripeDouble) -> None:
    top_up = paid(double, world.buyer, 5_000)
    form = form_of(buyer, top_up) | {"amount": "10.00"}
    for _ in range(2):
        assert buyer.post(page_of(top_up), form).status_code == 302
    assert TopUpRefund.objects.count() == 1 and len(double.state.of_kind("refund")) == 1
    other = buyer.post(page_of(top_up), form | {"amount": "11.00"})
    page = text(other)
    assert other.status_code == 422 and "You asked for another amount just before." in page
    assert 'value="11.00"' in page and form["request_id"] not in page
    assert TopUpRefund.objects.count() == 1


@pytest.mark.parametrize(
    ("amount", "status", "said"),
    [
        ("50.01", 409, "$50.00 of this payment can go back"),
        ("0", 400, "greater than or equal to 0.01"),
        ("much", 400, "Enter a number"),
        ("1.005", 400, "no more than 2 decimal places"),
    ],
)
def test_a_refused_amount_stays_beside_its_reason(
    world: World, buyer: Client, double: StripeDouble, amount: str, status: int, said: str
) -> None:
    top_up = paid(double, world.buyer, 5_000)
    refused = buyer.post(page_of(top_up), form_of(buyer, top_up) | {"amount": amount})
    assert refused.status_code == status
    assert said in text(refused) and f'value="{amount}"' in text(refused)
    assert not TopUpRefund.objects.exists() and double.state.of_kind("refund") == []


def test_a_form_without_its_id_says_so_and_works_the_next_time(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    top_up = paid(double, world.buyer, 5_000)
    refused = buyer.post(page_of(top_up), {"request_id": "x", "amount": "5.00"})
    page = text(refused)
    assert refused.status_code == 400 and "This form was out of date. Try again." in page
    again = re.search(r'name="request_id" value="([^"]+)"', page)
    assert again is not None
    assert buyer.post(page_of(top_up), {"request_id": again[1], "amount": "5.00"}).status_code == 302


def test_an_answer_that_was_lost_and_a_refund_that_came_back_are_said(
    world: World, buyer: Client, staff: Client, double: StripeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    top_up = paid(double, world.buyer, 5_000)
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT, path="/v1/refunds", times=3))
    page = text(buyer.post(page_of(top_up), form_of(buyer, top_up) | {"amount": "5.00"}, follow=True))
    assert "$5.00 has left your credit, and Stripe has not answered yet." in page
    assert "waits for Stripe; you need do nothing" in page
    assert "Every refund arrived." in text(staff.get(reverse("web:disputes")))
    monkeypatch.setattr(queries, "REFUND_PATIENCE", timedelta(0))
    assert "Stripe does not answer; it is asked again" in text(staff.get(reverse("web:disputes")))
    found = advance_refund(refund_id=TopUpRefund.objects.get().pk)
    at_stripe.fail(double, str(found.stripe_refund_id))
    advance_refund(refund_id=found.pk)
    page = text(buyer.get(page_of(top_up)))
    assert "the credit is back in your wallet" in page and "Up to <strong>$50.00</strong>" in page
    assert "the credit is back" in text(staff.get(reverse("web:disputes")))


def test_what_is_spent_is_not_offered(world: World, buyer: Client, double: StripeDouble) -> None:
    waiting = begin(world.buyer, 700)
    page = text(buyer.get(page_of(waiting)))
    assert "Refund" not in page and f'href="{waiting.checkout_url}"' in page
    top_up = paid(double, world.buyer, 500)
    spend(world.buyer, world.seller, wallet(world.buyer).posted)
    page = text(buyer.get(page_of(top_up)))
    assert "Nothing of this payment is left to refund" in page and "Refund to the card" not in page


def test_another_organizations_payment_is_not_found_and_not_refunded(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    top_up = paid(double, world.buyer, 5_000)
    form = {"request_id": str(uuid.uuid4()), "amount": "5.00"}
    for user, status in ((world.stranger, 404), (world.staff, 404), (world.developer, 403), (None, 302)):
        assert world.client(user).get(page_of(top_up)).status_code == status
        assert world.client(user).post(page_of(top_up), form).status_code == status
    assert not TopUpRefund.objects.exists()


def test_a_dispute_is_explained_where_money_is_shown_until_the_bank_decides(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    top_up = paid(double, world.buyer, 5_000)
    dispute_id = open_dispute(double, top_up)
    refresh_dispute(dispute_id=dispute_id)
    for address in (WALLET, page_of(top_up)):
        page = text(buyer.get(address))
        assert "Your bank took back a payment of $50.00" in page and "$50.00 of your credit is frozen" in page
    assert '<span class="tag bad">disputed</span>' in text(buyer.get(WALLET))
    assert "took back" not in text(world.client(world.creator).get(WALLET))
    other = paid(double, world.buyer, 700)
    refused = buyer.post(page_of(other), {"request_id": str(uuid.uuid4()), "amount": "7.00"})
    assert refused.status_code == 409 and "refunds wait until it has decided" in text(refused)
    assert not TopUpRefund.objects.exists()
    disputes.decide(double, dispute_id, won=True)
    refresh_dispute(dispute_id=dispute_id)
    assert "took back" not in text(buyer.get(WALLET))
    assert "the credit that was frozen is yours to spend again" in text(buyer.get(page_of(top_up)))


def test_an_inquiry_freezes_nothing_and_its_payment_can_be_refunded(
    world: World, buyer: Client, double: StripeDouble
) -> None:
    top_up = paid(double, world.buyer, 5_000)
    Dispute.objects.create(
        id="dp_1", top_up=top_up, amount_cents=5_000, reason="product_not_received", status="warning_needs_response"
    )
    page = text(buyer.get(page_of(top_up)))
    assert "Your bank asks about a payment of $50.00" in page and "nothing was received for the payment" in page
    assert "took back" not in page
    assert buyer.post(page_of(top_up), form_of(buyer, top_up) | {"amount": "50.00"}).status_code == 302
    assert TopUpRefund.objects.get().state == "sent"


def test_automatic_top_ups_that_a_dispute_stopped_say_so(world: World, buyer: Client, double: StripeDouble) -> None:
    rule(double, world.buyer, threshold_cents=100_000)
    top_up = charge_if_low(organization_id=world.buyer.pk)
    assert top_up is not None
    refresh_dispute(dispute_id=open_dispute(double, top_up))
    page = text(buyer.get(WALLET))
    assert "A payment is disputed, so Visa •••• 4242 is not charged any more." in page and "Turn on" in page


def test_staff_answer_a_dispute_with_what_the_platform_knows(world: World, staff: Client, double: StripeDouble) -> None:
    dispute_id = open_dispute(double, paid(double, world.buyer, 5_000))
    refresh_dispute(dispute_id=dispute_id)
    address = reverse("web:dispute", args=[dispute_id])
    listed = text(staff.get(reverse("web:disputes")))
    assert f'href="{address}"' in listed and "northbank" in listed and "Answer" in listed
    page = text(staff.get(address))
    assert 'value="Test Payer"' in page and "payer@example.com" in page and "dispute frozen: $50.00" in page

    typed = {"uncategorized_text": "They used it.", "customer_name": "Ada"}
    proof = SimpleUploadedFile("proof.pdf", b"%PDF-1.7 proof")
    wrong = "000000" if code_of(world.staff) != "000000" else "111111"
    for code, status, said in (("12", 400, "six digits"), (wrong, 403, "authenticator app shows now")):
        refused = staff.post(address, typed | {"code": code, "receipt": SimpleUploadedFile("a.pdf", b"%PDF-1.7")})
        assert refused.status_code == status and said in text(refused)
        assert "They used it." in text(refused) and 'value="Ada"' in text(refused)
    assert Dispute.objects.get().evidence_sent_at is None and double.state.of_kind("file") == []

    sent = text(staff.post(address, typed | {"code": code_of(world.staff), "receipt": proof}, follow=True))
    assert "The evidence is sent." in sent and "more is not taken" in sent and "Send to the bank" not in sent
    kept = double.state.objects[dispute_id]["evidence"]
    assert (kept["uncategorized_text"], kept["customer_name"]) == ("They used it.", "Ada")
    assert kept["receipt"].startswith("file_")


def test_files_that_banks_do_not_take_use_up_no_code(world: World, staff: Client, double: StripeDouble) -> None:
    dispute_id = open_dispute(double, paid(double, world.buyer, 5_000))
    refresh_dispute(dispute_id=dispute_id)
    address, code = reverse("web:dispute", args=[dispute_id]), code_of(world.staff)
    for file, said in (
        (SimpleUploadedFile("a.pdf", b"MZ an executable"), "is a PDF, PNG or JPEG"),
        (SimpleUploadedFile("a.pdf", b"%PDF-" + b"x" * 4_500_000), "at most 4.5 MB"),
        (None, "at least one text or file"),
    ):
        refused = staff.post(address, {"code": code} | ({"receipt": file} if file else {}))
        assert refused.status_code == 400 and said in text(refused)
    assert Dispute.objects.get().evidence_sent_at is None and double.state.of_kind("file") == []
    assert staff.post(address, {"code": code, "uncategorized_text": "x"}).status_code == 302


def test_disputes_are_for_staff(world: World, double: StripeDouble) -> None:
    dispute_id = open_dispute(double, paid(double, world.buyer, 5_000))
    refresh_dispute(dispute_id=dispute_id)
    address = reverse("web:dispute", args=[dispute_id])
    for user, status in ((world.consumer, 404), (world.creator, 404), (None, 302)):
        for path in (reverse("web:disputes"), address):
            assert world.client(user).get(path).status_code == status
        answer = world.client(user).post(address, {"code": "123456", "uncategorized_text": "x"})
        assert answer.status_code == status
    # Staff with a wrong code see it and send nothing; without a second factor they do not see it.
    assert world.client(world.staff).get(address).status_code == 200
    answer = world.client(world.staff).post(address, {"code": "123456", "uncategorized_text": "x"})
    assert answer.status_code == 403 and "/dashboard/security" in text(answer)
    assert world.client(world.staff).get(reverse("web:dispute", args=["dp_unknown"])).status_code == 404
    Authenticator.objects.all().delete()
    assert world.client(world.staff).get(address).headers["Location"] == reverse("web:security")
    assert Dispute.objects.get().evidence_sent_at is None
