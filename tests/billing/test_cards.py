"""Saved cards and automatic top-ups against the double: one payment per need, whatever the bank and the network do."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
import stripe
from django.conf import settings
from django.core import mail
from django.utils import timezone

from billing import tasks
from billing.auto_top_ups import charge_if_low, due_organizations, set_auto_top_up, stop_auto_top_up
from billing.cards import open_card_page, remove_card, save_card
from billing.errors import CardInUse, CardNotFound, InvalidAutoTopUp, PaymentProviderUnavailable
from billing.integrity import find_discrepancies
from billing.models import AutoTopUp, LedgerTransaction, SavedCard, StripeCustomer, StripeEvent, TopUp
from billing.pricing import NANO_PER_CENT
from billing.selectors import wallet
from devstack.stripe_double import checkout
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind, WebhookFaults
from devstack.stripe_double.http_client import DoubleHTTPClient
from marketplace.accounts.models import FeatureSwitch, Membership, Organization, User
from marketplace.alerts.delivery import deliver_due
from tests.billing.support import make_organization
from tests.billing.top_ups import post, work

pytestmark = pytest.mark.django_db


def at_stripe(double: StripeDouble) -> stripe.StripeClient:
    return stripe.StripeClient(settings.ENV.stripe_api_key, http_client=DoubleHTTPClient(double))


def save(double: StripeDouble, organization: Organization, card: str = "pm_card_visa") -> SavedCard:
    url = open_card_page(
        key=uuid.uuid4(), organization=organization, success_url="http://shop/back", cancel_url="http://shop/cancelled"
    )
    session_id = url.rsplit("/", 1)[1]
    checkout.pay(double, session_id, card)
    saved = save_card(session_id=session_id)
    assert saved is not None
    return saved


def rule(double: StripeDouble, organization: Organization, card: str = "pm_card_visa", **changes: Any) -> AutoTopUp:
    figures = {"threshold_cents": 500, "amount_cents": 2_500, "monthly_limit_cents": 10_000}
    return set_auto_top_up(
        organization=organization, card_id=save(double, organization, card).pk, **(figures | changes)
    )


def deliver(double: StripeDouble) -> None:
    for event in double.due_events():
        assert post(double, event).status_code == 200
    work()


def later() -> None:
    past = timezone.now() - timedelta(seconds=1)
    AutoTopUp.objects.update(next_attempt_at=past)
    TopUp.objects.exclude(next_check_at=None).update(next_check_at=past)


def payments(double: StripeDouble) -> list[tuple[int, bool]]:
    return [(charge.amount, charge.paid) for charge in at_stripe(double).v1.charges.list({"limit": 100}).data]


def test_a_card_is_saved_once_for_the_organization_that_opened_the_page(
    double: StripeDouble, organization: Organization
) -> None:
    card = save(double, organization, "pm_card_mastercard")
    deliver(double)  # the webhook says the same
    assert list(SavedCard.objects.values_list("organization_id", "brand", "last4", "exp_month")) == [
        (organization.pk, "mastercard", "4444", 12)
    ]
    assert str(card) == "Mastercard •••• 4444"
    save(double, organization)
    assert StripeCustomer.objects.count() == 1
    assert len(at_stripe(double).v1.customers.list().data) == 1
    assert payments(double) == []


def test_a_page_without_a_card_saves_none_and_a_removed_card_stays_removed(
    double: StripeDouble, organization: Organization
) -> None:
    url = open_card_page(key=uuid.uuid4(), organization=organization, success_url="http://b", cancel_url="http://c")
    assert save_card(session_id=url.rsplit("/", 1)[1]) is None
    card = save(double, organization)
    with pytest.raises(CardNotFound):
        remove_card(organization=make_organization(), card_id=card.pk)
    assert not SavedCard.objects.exclude(removed_at=None).exists()
    remove_card(organization=organization, card_id=card.pk)
    remove_card(organization=organization, card_id=card.pk)
    deliver(double)
    assert SavedCard.objects.get(pk=card.pk).removed_at is not None
    customer = StripeCustomer.objects.get().customer_id
    assert at_stripe(double).v1.payment_methods.list({"customer": customer}).data == []


def test_low_credit_charges_the_card_once_and_credits_the_wallet(
    double: StripeDouble, organization: Organization
) -> None:
    rule(double, organization)
    assert charge_if_low(organization_id=organization.pk) is not None
    assert charge_if_low(organization_id=organization.pk) is None  # 25 dollars are above the threshold
    deliver(double)
    assert wallet(organization).posted == 2_500 * NANO_PER_CENT
    assert payments(double) == [(2_500, True)]
    assert LedgerTransaction.objects.filter(kind="stripe_fee").count() == 1
    assert find_discrepancies() == []


def test_wallets_below_their_threshold_are_found_and_others_are_not(
    double: StripeDouble, organization: Organization
) -> None:
    rule(double, organization)
    charge_if_low(organization_id=organization.pk)
    assert due_organizations() == []
    low = make_organization(499 * NANO_PER_CENT)
    rule(double, low)
    assert due_organizations() == [low.pk]
    stop_auto_top_up(organization=low)
    assert due_organizations() == []
    assert charge_if_low(organization_id=low.pk) is None
    assert payments(double) == [(2_500, True)]


def test_no_card_is_charged_while_staff_have_switched_top_ups_off(
    double: StripeDouble, organization: Organization
) -> None:
    rule(double, organization)
    FeatureSwitch.objects.create(name="top-ups", percent=100, off_for=[organization.pk])
    assert charge_if_low(organization_id=organization.pk) is None
    deliver(double)
    assert payments(double) == [] and not TopUp.objects.exists()
    assert due_organizations() == [], "others are looked at meanwhile"
    before = AutoTopUp.objects.get(pk=organization.pk)
    assert (before.state, before.failures) == ("on", 0)
    FeatureSwitch.objects.update(off_for=[])
    later()
    assert charge_if_low(organization_id=organization.pk) is not None and payments(double) == [(2_500, True)]


def test_a_months_payments_stay_within_the_limit(double: StripeDouble, organization: Organization) -> None:
    rule(double, organization, threshold_cents=100_000, monthly_limit_cents=5_999)
    for _ in range(4):
        later()
        charge_if_low(organization_id=organization.pk)
    assert payments(double) == [(2_500, True)] * 2
    assert wallet(organization).posted == 5_000 * NANO_PER_CENT


def test_a_lost_answer_is_found_again_and_charges_once(double: StripeDouble, organization: Organization) -> None:
    rule(double, organization)
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT, path="/v1/payment_intents", times=3))
    with pytest.raises(PaymentProviderUnavailable):
        charge_if_low(organization_id=organization.pk)
    assert charge_if_low(organization_id=organization.pk) is None  # one is under way
    assert wallet(organization).posted == 0
    top_up = TopUp.objects.get()
    TopUp.objects.update(checks=1)
    tasks.check_top_up(str(top_up.pk))
    tasks.check_top_up(str(top_up.pk))
    assert wallet(organization).posted == 2_500 * NANO_PER_CENT
    assert payments(double) == [(2_500, True)]


def test_a_payment_whose_answer_was_lost_is_credited_by_its_webhook_alone(
    double: StripeDouble, organization: Organization
) -> None:
    rule(double, organization)
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT, path="/v1/payment_intents", times=3))
    with pytest.raises(PaymentProviderUnavailable):
        charge_if_low(organization_id=organization.pk)
    double.faults.webhooks = WebhookFaults(copies=2, shuffle=True, seed=3)
    deliver(double)
    assert wallet(organization).posted == 2_500 * NANO_PER_CENT
    assert TopUp.objects.get().state == TopUp.State.CREDITED


def test_an_error_that_stripe_keeps_for_the_key_charges_nothing_and_ends_after_a_day(
    double: StripeDouble, organization: Organization
) -> None:
    rule(double, organization)
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, path="/v1/payment_intents"))
    with pytest.raises(PaymentProviderUnavailable):
        charge_if_low(organization_id=organization.pk)
    top_up = TopUp.objects.get()
    with pytest.raises(PaymentProviderUnavailable):
        tasks.check_top_up(str(top_up.pk))
    TopUp.objects.update(created_at=timezone.now() - timedelta(hours=25), checks=3)
    tasks.check_top_up(str(top_up.pk))
    assert TopUp.objects.get().state == TopUp.State.EXPIRED
    assert charge_if_low(organization_id=organization.pk) is not None
    assert payments(double) == [(2_500, True)]


def test_a_bank_that_asks_the_holder_gets_a_page_and_automatic_top_ups_go_on_when_it_is_paid(
    double: StripeDouble, organization: Organization
) -> None:
    user = User.objects.create_user("billing@example.com", "a long enough password")
    Membership.objects.create(user=user, organization=organization, role=Membership.Role.BILLING)
    rule(double, organization, "pm_card_authenticationRequired")
    top_up = charge_if_low(organization_id=organization.pk)
    assert top_up is not None
    assert (top_up.state, top_up.failure) == (TopUp.State.PENDING, "authentication_required")
    assert wallet(organization).posted == 0
    assert AutoTopUp.objects.get().state == AutoTopUp.State.WAITING
    deliver_due()
    (message,) = mail.outbox
    assert message.bcc == ["billing@example.com"] and "confirm" in message.subject
    later()
    assert charge_if_low(organization_id=organization.pk) is None
    # The refused payment is ended: it cannot succeed beside the page.
    assert [intent.status for intent in at_stripe(double).v1.payment_intents.list().data] == ["canceled"]

    checkout.pay(double, str(top_up.checkout_session_id), "pm_card_authenticationRequired", approve=True)
    deliver(double)
    assert wallet(organization).posted == 2_500 * NANO_PER_CENT
    assert AutoTopUp.objects.get().state == AutoTopUp.State.ON
    assert LedgerTransaction.objects.filter(kind="top_up").count() == 1
    assert find_discrepancies() == []


def test_a_page_for_the_bank_that_nobody_pays_stops_automatic_top_ups(
    double: StripeDouble, organization: Organization
) -> None:
    rule(double, organization, "pm_card_authenticationRequired")
    top_up = charge_if_low(organization_id=organization.pk)
    assert top_up is not None
    at_stripe(double).v1.checkout.sessions.expire(str(top_up.checkout_session_id))
    deliver(double)
    assert AutoTopUp.objects.get().state == AutoTopUp.State.STOPPED
    assert wallet(organization).posted == 0


def test_a_refused_card_is_tried_ever_later_and_then_no_more(double: StripeDouble, organization: Organization) -> None:
    rule(double, organization, "pm_card_chargeCustomerFail")
    for _ in range(3):
        top_up = charge_if_low(organization_id=organization.pk)
        assert top_up is not None and (top_up.state, top_up.failure) == (TopUp.State.FAILED, "card_declined")
        assert charge_if_low(organization_id=organization.pk) is None  # not before its time
        later()
    assert AutoTopUp.objects.get().state == AutoTopUp.State.STOPPED
    assert charge_if_low(organization_id=organization.pk) is None
    deliver(double)
    assert wallet(organization).posted == 0
    assert payments(double) == [(2_500, False)] * 3
    assert not StripeEvent.objects.filter(processed_at=None).exists()


def test_a_card_in_use_is_not_removed_and_one_of_another_organization_is_not_charged(
    double: StripeDouble, organization: Organization
) -> None:
    wish = rule(double, organization)
    with pytest.raises(CardInUse):
        remove_card(organization=organization, card_id=wish.card_id)
    figures = {"threshold_cents": 500, "amount_cents": 2_500, "monthly_limit_cents": 10_000}
    with pytest.raises(CardNotFound):
        set_auto_top_up(organization=make_organization(), card_id=wish.card_id, **figures)
    for field, value in (("amount_cents", 99), ("threshold_cents", 0), ("monthly_limit_cents", 2_499)):
        with pytest.raises(InvalidAutoTopUp) as refused:
            set_auto_top_up(organization=organization, card_id=wish.card_id, **(figures | {field: value}))
        assert refused.value.field == field
    assert AutoTopUp.objects.get().threshold_cents == 500
