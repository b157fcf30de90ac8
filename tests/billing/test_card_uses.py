"""Cards by their fingerprints against the double: from pages, saved cards, events, and asked for when no event came."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.utils import timezone

from billing import tasks
from billing.auto_top_ups import charge_if_low
from billing.models import CardUse, SavedCard, StripeEvent, TopUp
from billing.stripe.charges import PaidWith, parse_charge
from devstack.stripe_double import checkout
from devstack.stripe_double.cards import TEST_CARDS
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import Organization
from tests.billing.payments import paid
from tests.billing.support import make_organization
from tests.billing.test_cards import rule, save
from tests.billing.top_ups import begin, post, work

pytestmark = pytest.mark.django_db
VISA = TEST_CARDS["pm_card_visa"].fingerprint


def uses() -> set[tuple[str, str]]:
    return set(CardUse.objects.values_list("organization__slug", "fingerprint"))


def pay_with(double: StripeDouble, organization: Organization, card: str) -> TopUp:
    top_up = begin(organization)
    assert top_up.checkout_session_id is not None
    checkout.pay(double, top_up.checkout_session_id, card)
    for event in double.due_events():
        assert post(double, event).status_code == 200
    work()
    top_up.refresh_from_db()
    assert top_up.state == TopUp.State.CREDITED
    return top_up


def test_one_card_has_one_fingerprint_whoever_pays_with_it_or_saves_it(
    double: StripeDouble, organization: Organization
) -> None:
    other = make_organization()
    assert pay_with(double, organization, "pm_card_visa").card_fingerprint == VISA
    assert save(double, other).fingerprint == VISA
    assert pay_with(double, other, "pm_card_mastercard").card_fingerprint not in ("", None, VISA)
    assert len(uses()) == 3 and {slug for slug, found in uses() if found == VISA} == {organization.slug, other.slug}


def test_the_events_of_a_payment_note_its_card_once_in_any_number(
    double: StripeDouble, organization: Organization
) -> None:
    top_up = pay_with(double, organization, "pm_card_visa")
    first = CardUse.objects.get()
    StripeEvent.objects.update(processed_at=None)
    work()
    assert CardUse.objects.get() == first and CardUse.objects.get().first_used_at == first.first_used_at
    assert first.first_used_at == top_up.credited_at


def test_a_prepaid_card_links_accounts_and_stands_for_nobody(double: StripeDouble, organization: Organization) -> None:
    top_up = pay_with(double, organization, "pm_card_mastercard_prepaid")
    assert top_up.card_fingerprint == ""
    assert uses() == {(organization.slug, TEST_CARDS["pm_card_mastercard_prepaid"].fingerprint)}


def test_an_automatic_top_up_has_the_card_that_paid(double: StripeDouble, organization: Organization) -> None:
    rule(double, organization)
    top_up = charge_if_low(organization_id=organization.pk)
    assert top_up is not None and top_up.state == TopUp.State.CREDITED and top_up.card_fingerprint == VISA


def test_cards_that_no_event_told_of_are_asked_for(double: StripeDouble, organization: Organization) -> None:
    top_up, card = paid(double, organization), save(double, organization, "pm_card_mastercard")
    long_ago = timezone.now() - timedelta(days=40)
    TopUp.objects.filter(pk=top_up.pk).update(card_fingerprint=None, credited_at=long_ago)
    SavedCard.objects.filter(pk=card.pk).update(fingerprint=None)
    CardUse.objects.all().delete()
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, path="/v1/", method="GET", times=20))
    tasks.learn_cards()
    assert CardUse.objects.count() == 0
    assert TopUp.objects.get().card_fingerprint is None, "Stripe did not answer"
    double.faults.requests.clear()
    for _ in range(2):
        tasks.learn_cards()
        assert TopUp.objects.get().card_fingerprint == VISA
        assert SavedCard.objects.get().fingerprint == TEST_CARDS["pm_card_mastercard"].fingerprint
        assert CardUse.objects.get(fingerprint=VISA).first_used_at == long_ago, "it is as old as its first payment"
        assert CardUse.objects.count() == 2


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (None, PaidWith("", counts=False)),
        (SimpleNamespace(card=None), PaidWith("", counts=False)),
        (SimpleNamespace(card=SimpleNamespace(fingerprint=None, wallet=None, funding="credit")), PaidWith("", False)),
        (SimpleNamespace(card=SimpleNamespace(fingerprint="f", wallet=None, funding="debit")), PaidWith("f", True)),
        (SimpleNamespace(card=SimpleNamespace(fingerprint="f", wallet=None, funding="prepaid")), PaidWith("f", False)),
        (
            SimpleNamespace(card=SimpleNamespace(fingerprint="f", wallet=SimpleNamespace(type="apple_pay"))),
            PaidWith("f", False),
        ),
    ],
)
def test_a_card_of_ones_own_counts_alone(details: object, expected: PaidWith) -> None:
    charge = SimpleNamespace(id="ch", balance_transaction=None, payment_intent="pi", payment_method_details=details)
    assert parse_charge(charge).card == expected
