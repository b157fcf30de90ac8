"""Saved cards and automatic top-ups through the API: what they do, and refusals that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from billing.auto_top_ups import charge_if_low
from billing.models import AutoTopUp, SavedCard, TopUp
from devstack.stripe_double import checkout
from devstack.stripe_double.core import StripeDouble
from devstack.stripe_double.faults import Fault, FaultKind
from marketplace.accounts.models import Organization
from tests.billing.conftest import double
from tests.billing.test_cards import save
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_organization

__all__ = ["double"]  # the fixture
pytestmark = pytest.mark.django_db
RULE = {"threshold_cents": 500, "amount_cents": 2_500, "monthly_limit_cents": 10_000}


@pytest.fixture
def acme(settings: Any) -> Organization:
    settings.ROOT_URLCONF = "marketplace.config.urls"
    return make_organization("acme")


def test_a_card_is_saved_listed_and_removed(acme: Organization, double: StripeDouble) -> None:
    api = Api.of(acme)
    assert api.get("cards").json()["results"] == []
    answer = api.post("cards", **{"Idempotency-Key": "one"})
    page = answer.json()["url"]
    assert answer.status_code == 201 and page.startswith("http://stripe.invalid/checkout/")
    assert api.post("cards", **{"Idempotency-Key": "one"}).json()["url"] == page
    assert api.post("cards", **{"Idempotency-Key": "two"}).json()["url"] != page
    card = save(double, acme)
    (shown,) = api.get("cards").json()["results"]
    assert (shown["id"], shown["brand"], shown["last4"], shown["expired"]) == (str(card.pk), "visa", "4242", False)
    assert "payment_method_id" not in shown
    for _ in range(2):
        assert api.call("DELETE", f"cards/{card.pk}").status_code == 204
    assert api.get("cards").json()["results"] == []


def test_a_card_that_stripe_lost_is_removed_all_the_same(acme: Organization, double: StripeDouble) -> None:
    card = SavedCard.objects.create(
        organization=acme, payment_method_id="pm_lost", brand="visa", last4="4242", exp_month=1, exp_year=2034
    )
    assert Api.of(acme).call("DELETE", f"cards/{card.pk}").status_code == 204
    assert Api.of(acme).get("cards").json()["results"] == []


def test_a_rule_is_set_read_and_turned_off(acme: Organization, double: StripeDouble) -> None:
    api, card = Api.of(acme), save(double, acme)
    assert error_of(api.get("auto-top-up"), 404)["code"] == "not_found"
    rule = api.call("PUT", "auto-top-up", RULE | {"card_id": str(card.pk)}).json()
    assert (rule["state"], rule["card"]["last4"], rule["paid_this_month_cents"]) == ("on", "4242", 0)
    charge_if_low(organization_id=acme.pk)
    rule = api.get("auto-top-up").json()
    assert (rule["paid_this_month_cents"], rule["last_attempt"]["state"]) == (2_500, "credited")
    assert rule["last_attempt"]["card_id"] == str(card.pk)
    assert error_of(api.call("DELETE", f"cards/{card.pk}"), 409)["code"] == "card_in_use"
    assert api.call("DELETE", "auto-top-up").status_code == 204
    assert api.get("auto-top-up").json()["state"] == "off"
    assert api.call("DELETE", f"cards/{card.pk}").status_code == 204


def test_a_bank_that_asks_shows_the_page_where_it_is_answered(acme: Organization, double: StripeDouble) -> None:
    api, card = Api.of(acme), save(double, acme, "pm_card_authenticationRequired")
    api.call("PUT", "auto-top-up", RULE | {"card_id": str(card.pk)})
    charge_if_low(organization_id=acme.pk)
    rule = api.get("auto-top-up").json()
    attempt = rule["last_attempt"]
    assert (rule["state"], attempt["state"], attempt["failure"]) == ("waiting", "pending", "authentication_required")
    page = attempt["checkout_url"].rsplit("/", 1)[1]
    paid = checkout.pay(double, page, "pm_card_authenticationRequired", approve=True)
    assert paid is not None and paid["status"] == "complete"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"amount_cents": 99}, "amount_cents"),
        ({"threshold_cents": 0}, "threshold_cents"),
        ({"monthly_limit_cents": 2_499}, "monthly_limit_cents"),
        ({"monthly_limit_cents": 2**40}, "monthly_limit_cents"),
        ({"amount_cents": "much"}, "amount_cents"),
        ({"card_id": "x"}, "card_id"),
    ],
)
def test_a_bad_figure_is_named_and_the_rule_stays(
    acme: Organization, double: StripeDouble, change: dict[str, Any], field: str
) -> None:
    api, card = Api.of(acme), save(double, acme)
    api.call("PUT", "auto-top-up", RULE | {"card_id": str(card.pk)})
    error = error_of(api.call("PUT", "auto-top-up", RULE | {"card_id": str(card.pk)} | change), 400)
    assert error["field"] == field
    assert AutoTopUp.objects.get().amount_cents == 2_500


def test_another_organizations_card_is_neither_charged_nor_removed(acme: Organization, double: StripeDouble) -> None:
    card = save(double, acme)
    stranger = Api.of(make_organization("other"))
    error_of(stranger.call("PUT", "auto-top-up", RULE | {"card_id": str(card.pk)}), 404)
    error_of(stranger.call("DELETE", f"cards/{card.pk}"), 404)
    assert stranger.get("cards").json()["results"] == []
    assert not AutoTopUp.objects.exists() and SavedCard.objects.get().removed_at is None


def test_without_stripe_nothing_is_saved_and_the_answer_says_to_try_again(
    acme: Organization, double: StripeDouble
) -> None:
    double.faults.requests.append(Fault(FaultKind.SERVER_ERROR, path="/v1/checkout", times=3))
    assert error_of(Api.of(acme).post("cards"), 503)["code"] == "payment_provider_unavailable"


def test_a_top_up_with_a_key_is_started_once_and_another_amount_is_refused(
    acme: Organization, double: StripeDouble
) -> None:
    api, key = Api.of(acme), {"Idempotency-Key": "monday"}
    double.faults.requests.append(Fault(FaultKind.DROP_AFTER_COMMIT, path="/v1/checkout", times=3))
    error_of(api.post("topups", {"amount_cents": 500}, **key), 503)
    first = api.post("topups", {"amount_cents": 500}, **key).json()
    assert first["state"] == "pending" and first["checkout_url"]
    assert api.post("topups", {"amount_cents": 500}, **key).json() == first
    assert error_of(api.post("topups", {"amount_cents": 600}, **key), 422)["code"] == "idempotency_key_reused"
    for wrong in ("", "x" * 256, "tab\t"):
        error = error_of(api.post("topups", {"amount_cents": 500}, **{"Idempotency-Key": wrong}), 400)
        assert error["field"] == "Idempotency-Key"
    assert TopUp.objects.count() == 1
    assert Api.of(make_organization("other")).post("topups", {"amount_cents": 600}, **key).status_code == 201


def test_changes_of_money_are_limited_per_organization_and_reading_is_not(
    acme: Organization, double: StripeDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marketplace.api.throttling.MoneyThrottle.limit", 2)
    api = Api.of(acme)
    assert [api.post("cards").status_code for _ in range(3)] == [201, 201, 429]
    assert Api.of(acme).post("topups", {"amount_cents": 500}).status_code == 429
    assert api.get("cards").status_code == 200
    assert Api.of(make_organization("other")).post("cards").status_code == 201
    assert not TopUp.objects.exists()
