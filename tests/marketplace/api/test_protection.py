"""The rules against copying in the control API."""

from __future__ import annotations

import pytest

from marketplace.protection.models import Protection
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_base, make_model, make_organization

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
