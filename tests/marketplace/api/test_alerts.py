"""The API of alerts: the feed by scope, with its ways, and what is muted."""

from __future__ import annotations

import pytest

from marketplace.alerts.models import Mute
from marketplace.alerts.services import tell
from marketplace.alerts.webhooks import create_webhook
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_organization

pytestmark = pytest.mark.django_db


def test_the_feed_has_what_the_scopes_reach_and_where_it_went() -> None:
    acme = make_organization("acme")
    create_webhook(organization=acme, url="https://hooks.example/x")
    for kind in ("model.errors", "budget.alert"):
        tell(organization_id=acme.pk, kind=kind, once="1", subject="Look", text="here", data={"rate": 0.5})
    found = Api.of(acme, "publish").get("alerts").json()["results"]
    assert [(one["kind"], one["subject"], one["data"]) for one in found] == [("model.errors", "Look", {"rate": 0.5})]
    assert sorted(one["to"] for one in found[0]["deliveries"]) == ["https://hooks.example/x", "mail"]
    assert len(Api.of(acme, "publish", "account").get("alerts").json()["results"]) == 2
    assert Api.of(make_organization("other")).get("alerts").json()["results"] == []


def test_a_kind_is_muted_by_those_whom_it_concerns() -> None:
    acme = make_organization("acme")
    api = Api.of(acme, "account")
    assert api.call("PUT", "alerts/kinds/budget.alert", {"muted": True}).json() == {
        "kind": "budget.alert",
        "label": "Budgets",
        "muted": True,
    }
    error_of(api.call("PUT", "alerts/kinds/model.errors", {"muted": True}), 404)
    error_of(api.call("PUT", "alerts/kinds/budget.alert", {"muted": "perhaps"}), 400)
    assert [(one.kind, one.organization) for one in Mute.objects.all()] == [("budget.alert", acme)]
    kinds = api.get("alerts/kinds").json()
    assert [one["muted"] for one in kinds if one["kind"] == "budget.alert"] == [True]
    assert api.call("PUT", "alerts/kinds/budget.alert", {"muted": False}).json()["muted"] is False
    assert not Mute.objects.exists()
