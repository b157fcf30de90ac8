"""The evidence about a model, from real payments and predictions: which money counts, and which does not."""

from __future__ import annotations

import uuid
from datetime import date, timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

import marketplace.gateway
from billing.models import CardUse, PaidWeek
from billing.pricing import Price, TokenUsage
from billing.rollups.services import roll_up
from billing.services import credit_promotion, refresh_top_up, release_hold_sync
from devstack.stripe_double import checkout
from devstack.stripe_double.core import StripeDouble
from marketplace.accounts.models import Membership, Organization
from marketplace.catalog.models import Model, Standing, Version
from marketplace.standing.evidence import LOST_REASONS, Found, monday, read_evidence
from marketplace.standing.formula import MEMORY_WEEKS, NANO_PER_USD, demand
from marketplace.standing.services import rank_models
from marketplace.standing.tasks import rank_new_models
from tests.billing.conftest import double
from tests.billing.payments import decided, disputed
from tests.billing.support import hold_request, place, settle, split_of
from tests.billing.top_ups import begin
from tests.database import as_superuser
from tests.marketplace.catalog.factories import make_model, make_organization, make_version
from tests.marketplace.evals.factories import make_evaluation

__all__ = ["double"]
pytestmark = pytest.mark.django_db
PAID = 3 * NANO_PER_USD


def sold(slug: str = "triage") -> Model:
    return make_version(make_model(make_organization(f"maker-of-{slug}"), slug=slug)).model


def top_up(double: StripeDouble, buyer: Organization, card: str = "pm_card_visa"):
    found = begin(buyer, 2_500)
    assert found.checkout_session_id is not None
    checkout.pay(double, found.checkout_session_id, card)
    return refresh_top_up(top_up_id=found.pk)


def call(buyer: Organization, model: Model, nano_usd: int = PAID) -> uuid.UUID:
    """One prediction of the model that costs so much."""
    split_of(model.organization)
    request = hold_request(
        buyer, model.organization, price=Price(0, 0, 0, nano_usd), amount_nano_usd=nano_usd, model_id=model.pk
    )
    place(request)
    settle(request.prediction_id, TokenUsage(1, 0, 1))
    return request.prediction_id


def buy(buyer: Organization, model: Model, *, weeks: int = 2, first_used_days_ago: int = 15) -> None:
    """Pay for a call in each of the last weeks, with a card that has been known for a while."""
    for ago in range(weeks):
        call(buyer, model)
        roll_up()
        # Time cannot be waited for: the week's row goes back by as many weeks as are still to come.
        back = monday(timezone.now().date()) - timedelta(weeks=weeks - 1 - ago)
        with as_superuser():
            PaidWeek.objects.filter(week__gt=back, organization_id=buyer.pk, week=monday(timezone.now().date())).update(
                week=back
            )
    CardUse.objects.filter(organization=buyer).update(
        first_used_at=timezone.now() - timedelta(days=first_used_days_ago)
    )


def found(model: Model) -> Found:
    return read_evidence(now=timezone.now()).get(model.pk, Found())


def payers(model: Model) -> int:
    rank_models()
    return Standing.objects.get(pk=model.pk).payers


def test_a_payer_counts_with_a_card_and_calls_in_two_weeks(double: StripeDouble) -> None:
    model, buyer = sold(), make_organization()
    top_up(double, buyer)
    buy(buyer, model, weeks=1)
    assert payers(model) == 0 and [one.weeks for one in found(model).evidence.payers] == [1]
    buy(buyer, model, weeks=2)
    assert payers(model) == 1
    (payer,) = found(model).evidence.payers
    assert payer.weeks == 2 == found(model).weeks
    # Money that was paid a week ago is worth a twelfth of a halving less.
    assert 2 * PAID < payer.paid_nano_usd < 3 * PAID


def test_promotional_credit_counts_nothing_and_neither_does_a_fresh_card(double: StripeDouble) -> None:
    model, washer, fresh = sold(), make_organization(), make_organization()
    credit_promotion(organization=washer, amount_nano_usd=100 * PAID, reference="gift")
    buy(washer, model)
    assert found(model) == Found() or found(model).evidence.payers == ()
    top_up(double, fresh)
    buy(fresh, model, first_used_days_ago=13)
    assert payers(model) == 0
    CardUse.objects.update(first_used_at=timezone.now() - timedelta(days=14, minutes=1))
    assert payers(model) == 1


def test_prepaid_cards_stand_for_nobody(double: StripeDouble) -> None:
    model, buyer = sold(), make_organization()
    top_up(double, buyer, "pm_card_mastercard_prepaid")
    buy(buyer, model)
    assert payers(model) == 0


def test_accounts_with_one_card_are_one_payer_and_so_are_accounts_with_one_member(double: StripeDouble) -> None:
    model = sold()
    same_card = [make_organization() for _ in range(3)]
    for one in same_card:
        top_up(double, one)
        buy(one, model)
    assert payers(model) == 1
    assert demand(found(model).evidence.payers) < 5 + 1e-9
    other = make_organization()
    top_up(double, other, "pm_card_mastercard")
    buy(other, model)
    assert payers(model) == 2
    Membership.objects.create(organization=other, user=same_card[1].memberships.get().user)
    assert payers(model) == 1


def test_whoever_shares_a_card_or_a_member_with_the_creator_never_counts_also_by_way_of_others(
    double: StripeDouble,
) -> None:
    model, buyer, between = sold(), make_organization(), make_organization()
    top_up(double, buyer)
    buy(buyer, model)
    assert payers(model) == 1
    # The buyer shares a card with an account that shares a member with the creator.
    top_up(double, between)
    assert payers(model) == 1
    link = Membership.objects.create(organization=between, user=model.organization.memberships.get().user)
    assert payers(model) == 0
    link.delete()
    CardUse.objects.create(organization=model.organization, fingerprint=CardUse.objects.first().fingerprint)  # type: ignore[union-attr]
    assert payers(model) == 0
    assert Standing.objects.get(pk=model.pk).weeks == 0


def test_a_creator_that_buys_its_own_model_never_counts(double: StripeDouble) -> None:
    model = sold()
    top_up(double, model.organization)
    buy(model.organization, model)
    assert payers(model) == 0


def test_disputed_money_counts_again_when_the_bank_gives_it_back(double: StripeDouble) -> None:
    model, buyer = sold(), make_organization()
    payment = top_up(double, buyer)
    buy(buyer, model)
    dispute = disputed(double, payment)
    assert payers(model) == 0
    decided(double, dispute, won=True)
    assert payers(model) == 1


def test_money_that_a_bank_took_back_for_good_never_counts_again(double: StripeDouble) -> None:
    model, buyer = sold(), make_organization()
    payment = top_up(double, buyer)
    buy(buyer, model)
    decided(double, disputed(double, payment), won=False)
    assert payers(model) == 0


def test_paid_money_fades_and_is_forgotten_after_a_year(double: StripeDouble) -> None:
    model, buyer = sold(), make_organization()
    top_up(double, buyer)
    buy(buyer, model)
    now = timezone.now()
    before = found(model).evidence.payers[0].paid_nano_usd
    later = read_evidence(now=now + timedelta(weeks=12))[model.pk].evidence.payers[0].paid_nano_usd
    assert abs(later - before / 2) <= 1
    after = read_evidence(now=now + timedelta(weeks=MEMORY_WEEKS + 1))
    assert after.get(model.pk, Found()).evidence.payers == ()


def test_the_newest_valid_evaluation_of_the_newest_published_version_counts() -> None:
    model = sold()
    first = model.versions.get()
    for rows, correct in ((60, 50), (100, 70), (49, 49)):
        make_evaluation(first, rows=rows, correct=correct, base_correct=0)
    assert found(model).evidence.evaluation == (70, 100)
    draft = make_version(model, Version.State.VERIFIED)
    make_evaluation(draft, rows=100, correct=99, base_correct=0)
    assert found(model).evidence.evaluation == (70, 100)
    newest = make_version(model)
    assert found(model).evidence.evaluation is None, "the newest version was not measured"
    make_evaluation(newest, rows=50, correct=40, base_correct=0)
    assert found(model).evidence.evaluation == (40, 50)


def test_uptime_is_of_answered_and_lost_calls_and_callers_cannot_lower_it(double: StripeDouble) -> None:
    model, buyer = sold(), make_organization()
    top_up(double, buyer)
    for _ in range(3):
        call(buyer, model, 100)
    of_callers = ("refused", "the answer was not delivered", "the budget ends", "the answer was cut off")
    for reason in (*LOST_REASONS, *of_callers):
        request = place(hold_request(buyer, model.organization, model_id=model.pk))
        release_hold_sync(prediction_id=request.prediction_id, reason=reason)
    roll_up()
    rank_models()
    standing = Standing.objects.get(pk=model.pk)
    assert (standing.served, standing.lost) == (3, len(LOST_REASONS))
    long_after = read_evidence(now=timezone.now() + timedelta(days=28))
    assert (long_after[model.pk].evidence.served if model.pk in long_after else 0) == 0


def test_the_reasons_of_lost_calls_are_those_that_the_gateway_gives() -> None:
    source = "\n".join(path.read_text() for path in Path(marketplace.gateway.__path__[0]).glob("*.py"))
    for reason in LOST_REASONS:
        assert f'"{reason}"' in source, reason


def test_ranking_twice_changes_nothing_and_a_new_model_is_ranked_soon() -> None:
    first, second = sold("first"), sold("second")
    for days, model in ((2, first), (1, second)):  # within a test's transaction all are listed at one time
        Standing.objects.filter(pk=model.pk).update(listed_at=timezone.now() - timedelta(days=days))
    assert rank_models() == 2
    now = timezone.now()
    assert rank_models(now=now) == rank_models(now=now) == 0
    assert [Standing.objects.get(pk=one.pk).place for one in (first, second)] == [1, 2], "the older is first"
    third = sold("third")
    rank_new_models()
    assert Standing.objects.get(pk=third.pk).place == 3


def test_a_listing_without_its_row_is_given_one() -> None:
    model = sold()
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM catalog_standing")
    rank_models()
    assert Standing.objects.get().model_id == model.pk


def test_weeks_begin_on_monday() -> None:
    assert monday(date(2026, 11, 29)) == monday(date(2026, 11, 23)) == date(2026, 11, 23)
