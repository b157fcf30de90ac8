"""Prices and royalties through the control API."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from marketplace.catalog.services import offer_derivation
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

pytestmark = pytest.mark.django_db
PRICE = {"input_micro_usd_per_mtok": 100, "output_micro_usd_per_mtok": 400}
TERMS = {
    "embedding_micro_usd_per_mtok": 10,
    "interactive_bps": 15_000,
    "batch_bps": 5_000,
    "monthly_free_nano_usd": 10**9,
    "intro_free_nano_usd": 5 * 10**9,
}


def test_a_price_has_classes_free_amounts_a_version_and_a_beginning() -> None:
    model = make_version(make_model(make_organization("acme"))).model
    api = Api.of(model.organization)
    own = api.post("models/acme/triage/prices", {**PRICE, **TERMS, "version": 1}).json()
    assert {name: own[name] for name in TERMS} == TERMS and own["version"] == 1
    start = (timezone.now() + timedelta(days=9)).isoformat()
    later = api.post("models/acme/triage/prices", {**PRICE, "effective_at": start}).json()
    assert (later["version"], later["interactive_bps"], later["embedding_micro_usd_per_mtok"]) == (None, 10_000, None)
    shown = Api().get("models/acme/triage").json()["price"]
    assert {**shown, "copy": None} == own, "the listing does not say what a copy costs"
    listed = Api().get("models/acme/triage/prices").json()["results"]
    assert listed[0] == later and own in listed and len(listed) == 3
    missing = api.post("models/acme/triage/prices", {**PRICE, "version": 2})
    assert error_of(missing, 404)["code"] == "not_found" and model.prices.count() == 3


def test_the_prices_of_a_draft_are_for_its_own_organization_alone() -> None:
    model = make_model(make_organization("acme"))
    api = Api.of(model.organization)
    assert api.post("models/acme/triage/prices", PRICE).status_code == 201
    error_of(Api().get("models/acme/triage/prices"), 404)
    error_of(Api.of(make_organization()).get("models/acme/triage/prices"), 404)
    assert len(api.get("models/acme/triage/prices").json()["results"]) == 1


@pytest.mark.parametrize(
    "terms",
    [
        {"interactive_bps": 0},
        {"batch_bps": 10**6},
        {"monthly_free_nano_usd": -1},
        {"effective_at": "2020-01-01T00:00:00Z"},
    ],
)
def test_terms_that_are_none_set_no_price(terms: dict[str, object]) -> None:
    model = make_model(make_organization("acme"))
    refused = Api.of(model.organization).post("models/acme/triage/prices", {**PRICE, **terms})
    assert error_of(refused, 400)["field"] == next(iter(terms)) and not model.prices.exists()


def test_a_model_is_created_as_derived_from_another_or_not_at_all() -> None:
    upstream = make_version(make_model(make_organization("acme"))).model
    maker = Api.of(make_organization("maker"))
    body = {"slug": "better", "title": "Better", "derived_from": [{"model": "acme/triage"}]}
    assert error_of(maker.post("models", body), 409)["code"] == "derivation_closed"
    error_of(maker.get("models/maker/better"), 404)
    own = Api.of(upstream.organization)
    assert own.call("PATCH", "models/acme/triage", {"derivative_royalty_bps": 1_500}).status_code == 200
    made = maker.post("models", body).json()
    assert made["derived_from"] == [{"model": "acme/triage", "royalty_bps": 1_500}]
    assert made["derivative_royalty_bps"] is None
    other = maker.call("PATCH", "models/maker/better", {"title": "X", "derived_from": [{"model": "acme/other"}]})
    assert error_of(other, 404)["field"] == "derived_from"
    assert maker.get("models/maker/better").json()["title"] == "Better"


def test_a_blend_names_its_models_and_what_each_gets() -> None:
    for slug in ("one", "two"):
        offer_derivation(model=make_version(make_model(make_organization(slug), slug=slug)).model, royalty_bps=1_000)
    maker = Api.of(make_organization("maker"))
    wanted = [{"model": "two/two", "royalty_bps": 1_200}, {"model": "one/one"}]
    made = maker.post("models", {"slug": "blend", "title": "Blend", "derived_from": wanted}).json()
    assert made["derived_from"] == [wanted[0], {"model": "one/one", "royalty_bps": 1_000}]
    assert maker.call("PATCH", "models/maker/blend", {"derived_from": made["derived_from"]}).status_code == 200
    less = maker.call("PATCH", "models/maker/blend", {"derived_from": wanted[:1]})
    assert error_of(less, 409)["code"] == "already_derived"
    crowd = [{"model": f"one/m{number}"} for number in range(9)]
    error_of(maker.post("models", {"slug": "more", "title": "More", "derived_from": crowd}), 400)
