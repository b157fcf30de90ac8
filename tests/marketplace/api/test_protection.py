"""The rules against copying in the control API."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import Organization
from marketplace.protection.models import Customer, Protection
from tests.marketplace.accounts.acts import acts_of
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_base, make_model, make_organization, make_version

pytestmark = pytest.mark.django_db
PATH = "models/acme/triage/protection"


def test_a_creator_reads_and_changes_the_rules_and_what_is_left_out_stays() -> None:
    model = make_model(make_organization("acme"))
    api = Api.of(model.organization)
    assert api.get(PATH).json() == {"on_copying": "", "calls_per_day": None, "logprobs_open": False}
    assert api.call("PATCH", PATH, {"calls_per_day": 300, "on_copying": "ask"}).status_code == 200
    assert api.call("PATCH", PATH, {"logprobs_open": True}).json() == {
        "on_copying": "ask",
        "calls_per_day": 300,
        "logprobs_open": True,
    }
    assert api.call("PATCH", PATH, {"calls_per_day": None}).json()["calls_per_day"] is None


@pytest.mark.parametrize("wrong", [{"on_copying": "shoot"}, {"calls_per_day": 0}, {"calls_per_day": 10**7}])
def test_a_rule_that_is_none_changes_nothing(wrong) -> None:
    api = Api.of(make_model(make_organization("acme")).organization)
    error_of(api.call("PATCH", PATH, wrong), 400)
    assert not Protection.objects.exists()


def test_a_new_model_of_the_api_tells_of_copiers_and_slows_nobody() -> None:
    make_base()
    api = Api.of(make_organization("acme"))
    assert api.post("models", {"slug": "triage", "title": "Triage"}).status_code == 201
    assert api.get(PATH).json() == {"on_copying": "tell", "calls_per_day": None, "logprobs_open": False}


def test_a_customer_asks_for_more_and_the_creator_answers_a_pseudonym() -> None:
    model, buyer = make_model(make_organization("acme")), make_organization("buyer")
    creator, customer = Api.of(model.organization), Api.of(buyer)
    refused = error_of(customer.post("models/acme/triage/more-calls", {"calls_per_day": 900}), 404)
    assert refused["code"] == "not_found", "nothing of it is for sale yet"
    make_version(model)
    assert (
        error_of(customer.post("models/acme/triage/more-calls", {"calls_per_day": 900}), 403)["code"] == "not_limited"
    )
    assert creator.call("PATCH", PATH, {"calls_per_day": 300}).status_code == 200
    row = Customer.objects.create(model=model, organization=buyer)
    assert creator.get("models/acme/triage/customers").json()["results"] == [], (
        "nobody of whom there is something to say"
    )
    assert customer.post("models/acme/triage/more-calls", {"calls_per_day": 900}).json() == {"calls_per_day": 900}
    (noted,) = creator.get("models/acme/triage/customers").json()["results"]
    assert (noted["id"], noted["asked_calls_per_day"]) == (row.pk, 900)
    assert buyer.slug not in noted["name"] and str(buyer.pk) not in str(noted)
    answered = creator.post(f"models/acme/triage/customers/{row.pk}", {"answer": "grant"}).json()
    assert (answered["granted_calls_per_day"], answered["asked_at"]) == (900, None)
    assert error_of(creator.post("models/acme/triage/customers/7777777", {"answer": "trust"}), 404)
    assert acts_of(Organization.objects.get(slug="acme"), "protection.answered") == ["protection.answered"]
