"""A budget belongs to a key and all its rotations: rotating a key is no way out of its limit."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection

from billing.errors import BudgetExceeded
from billing.integrity import find_discrepancies
from billing.limited_keys import Limits, budget_of, create_limited_key, set_key_budget
from billing.models import BudgetNode
from billing.pricing import Price
from billing.selectors import key_budgets
from marketplace.accounts.models import ApiKey, Organization
from marketplace.accounts.services import rotate_api_key
from tests.billing import support
from tests.billing.support import hold_request, make_organization, settle
from tests.database import as_superuser

pytestmark = pytest.mark.django_db

LIMIT = 1_000
PER_PREDICTION = Price(0, 0, 0, 250)


@pytest.fixture
def consumer() -> Organization:
    return make_organization(credit_nano_usd=10**6)


@pytest.fixture
def creator() -> Organization:
    return make_organization()


def make_key(consumer: Organization, limits: Limits) -> ApiKey:
    key, _text = create_limited_key(
        organization=consumer, name="key", scopes=["predict"], created_by=None, expires_at=None, limits=limits
    )
    return key


def rotated(key: ApiKey) -> ApiKey:
    new, _text = rotate_api_key(key=key, created_by=None)
    return new


def place(key: ApiKey, creator: Organization) -> uuid.UUID:
    request = hold_request(key.organization, creator, api_key_id=key.pk, amount_nano_usd=250, price=PER_PREDICTION)
    return support.place(request).prediction_id


@pytest.mark.parametrize("limits", [Limits(total_nano_usd=LIMIT), Limits(monthly_nano_usd=LIMIT)])
def test_five_rotations_spend_one_budget(consumer: Organization, creator: Organization, limits: Limits) -> None:
    key = make_key(consumer, limits)
    keys = [key]
    for _rotation in range(5):
        keys.append(rotated(keys[-1]))
    for turn in range(4):
        settle(place(keys[turn + 1], creator))
    for spent in keys:
        with pytest.raises(BudgetExceeded):
            place(spent, creator)
    budget = BudgetNode.objects.get()
    assert (budget.api_key_id, budget.spent_total_nano_usd, budget.held_nano_usd) == (key.pk, LIMIT, 0)
    consumer_account = consumer.ledger_accounts.get(kind="customer_credit")
    assert (consumer_account.posted, consumer_account.held) == (10**6 - LIMIT, 0)


def test_money_that_the_old_key_has_in_flight_counts_for_the_new_one(
    consumer: Organization, creator: Organization
) -> None:
    old = make_key(consumer, Limits(total_nano_usd=LIMIT))
    flying = [place(old, creator) for _ in range(3)]
    new = rotated(old)
    place(new, creator)
    with pytest.raises(BudgetExceeded):
        place(new, creator)
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_release_hold(%s, 'test')", [flying[0]])
    place(new, creator)
    assert BudgetNode.objects.get().held_nano_usd == LIMIT


def test_the_check_of_the_books_counts_open_holds_of_the_whole_line(
    consumer: Organization, creator: Organization
) -> None:
    old = make_key(consumer, Limits(total_nano_usd=LIMIT))
    place(old, creator)
    place(rotated(rotated(old)), creator)
    assert find_discrepancies() == []
    with as_superuser():
        BudgetNode.objects.update(held_nano_usd=499)
    (found,) = find_discrepancies()
    assert (found.kind, found.subject, found.found, found.expected) == (
        "held_cache",
        f"budget {BudgetNode.objects.get().pk}",
        499,
        500,
    )


def test_a_refund_of_the_old_keys_prediction_returns_to_the_lines_budget(
    consumer: Organization, creator: Organization
) -> None:
    old = make_key(consumer, Limits(total_nano_usd=LIMIT))
    new = rotated(old)
    predictions = [place(new, creator) for _ in range(4)]
    for prediction in predictions:
        settle(prediction)
    with connection.cursor() as cursor:
        cursor.execute("SELECT billing_correct_prediction(%s, NULL, 'test', gen_random_uuid())", [predictions[0]])
    assert BudgetNode.objects.get().spent_total_nano_usd == LIMIT - 250
    place(new, creator)


def test_a_limit_that_is_set_on_any_key_of_a_line_is_the_lines(consumer: Organization, creator: Organization) -> None:
    old = make_key(consumer, Limits())
    new = rotated(rotated(old))
    set_key_budget(api_key=new, monthly_limit_nano_usd=None, total_limit_nano_usd=250)
    place(old, creator)
    with pytest.raises(BudgetExceeded):
        place(new, creator)
    old.refresh_from_db()
    (budget,) = key_budgets(consumer)
    assert budget_of(old) == budget_of(new) == budget


def test_another_key_has_its_own_budget(consumer: Organization, creator: Organization) -> None:
    first, second = (make_key(consumer, Limits(total_nano_usd=250)) for _ in range(2))
    place(first, creator)
    place(second, creator)
    assert BudgetNode.objects.count() == 2
