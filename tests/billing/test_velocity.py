"""Limits on beginning payments and saving cards: fast enough for people, too slow to test stolen cards."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from billing import cards, top_ups
from billing.errors import TooManyAttempts
from billing.models import SavedCard, TopUp
from devstack.stripe_double.core import StripeDouble
from tests.billing.support import make_organization
from tests.billing.test_cards import save
from tests.billing.top_ups import begin, pay

pytestmark = pytest.mark.django_db


def test_payments_that_are_begun_and_not_paid_are_few_a_day(
    double: StripeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_ups, "MAX_FIRST_ATTEMPTS", 2)
    monkeypatch.setattr(top_ups, "MAX_ATTEMPTS", 3)
    organization, other = make_organization(), make_organization()
    begun = [begin(organization) for _ in range(2)]
    with pytest.raises(TooManyAttempts) as refused:
        begin(organization)
    assert refused.value.status == 429 and "retry-after" in refused.value.headers
    assert TopUp.objects.filter(organization=organization).count() == 2, "nothing was begun"
    begin(other)
    again = top_ups.start_top_up(
        organization=organization, amount_cents=2_500, success_url="a", cancel_url="b", top_up_id=begun[0].pk
    )
    assert again == begun[0], "a retry of one that was begun is no new one"
    pay(double, begun[0])
    assert top_ups.refresh_top_up(top_up_id=begun[0].pk).state == TopUp.State.CREDITED
    for _ in range(2):
        begin(organization)
    with pytest.raises(TooManyAttempts):
        begin(organization)
    TopUp.objects.update(created_at=timezone.now() - timedelta(days=2))
    begin(organization)


def test_cards_are_saved_a_few_a_month_and_removed_ones_count(
    double: StripeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards, "MAX_NEW_CARDS", 1)
    organization = make_organization()
    saved = save(double, organization)
    cards.remove_card(organization=organization, card_id=saved.pk)
    with pytest.raises(TooManyAttempts):
        cards.open_card_page(key=uuid.uuid4(), organization=organization, success_url="a", cancel_url="b")
    SavedCard.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert save(double, organization, "pm_card_mastercard")
