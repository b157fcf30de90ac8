"""Money goes to nobody, and is taken from no card, because a thief of the database login wrote so."""

from __future__ import annotations

import pytest

from billing.models import PayoutAccount, SavedCard, StripeCustomer
from marketplace.accounts.seals import SealBroken
from tests.marketplace import thief
from tests.marketplace.catalog.factories import make_organization

pytestmark = pytest.mark.django_db


def test_a_payout_account_that_was_changed_is_paid_nothing() -> None:
    victim = make_organization("victim")
    PayoutAccount.objects.create(organization=victim, stripe_account_id="acct_victim", state="active")
    thief.change("billing_payoutaccount", "true", stripe_account_id="acct_thief")
    with pytest.raises(SealBroken):
        PayoutAccount.objects.get(organization=victim)
    with pytest.raises(SealBroken):
        PayoutAccount.objects.filter(organization=victim).update(stripe_account_id="acct_thief")


def test_another_organizations_card_and_customer_pay_for_nobody_else() -> None:
    victim, mine = make_organization("victim"), make_organization("mine")
    StripeCustomer.objects.create(organization=victim, customer_id="cus_victim")
    card = SavedCard.objects.create(
        organization=victim, payment_method_id="pm_1", brand="visa", last4="4242", exp_month=1, exp_year=2099
    )
    thief.change("billing_savedcard", "id = %s", card.pk, organization_id=mine.pk)
    with pytest.raises(SealBroken):
        SavedCard.objects.get(organization=mine)
    thief.run(
        "INSERT INTO billing_stripecustomer (organization_id, customer_id, created_at, seal)"
        " SELECT %s, 'cus_other', now(), seal FROM billing_stripecustomer",
        mine.pk,
    )
    with pytest.raises(SealBroken):
        StripeCustomer.objects.get(organization=mine)
