"""The API of budgets: a team with limits, a key that moves into it, end users, alerts and webhooks."""

from __future__ import annotations

import pytest

from billing.models import BudgetAlert, BudgetNode
from marketplace.accounts.models import Organization
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_key, make_organization

pytestmark = pytest.mark.django_db

NO_LIMITS = {"per_request_nano_usd": None, "daily_nano_usd": None, "monthly_nano_usd": None, "total_nano_usd": None}


@pytest.fixture
def api() -> Api:
    return Api.of(make_organization("acme"))


def test_a_key_spends_the_budget_of_its_team(api: Api) -> None:
    key, _ = make_key(Organization.objects.get(slug="acme"), "predict")
    wanted = {"name": "research", "limits": {"monthly_nano_usd": 10**9}, "end_user_limits": {"daily_nano_usd": 5}}
    team = api.call("POST", "budgets", wanted).json()
    assert team["limits"] == NO_LIMITS | {"monthly_nano_usd": 10**9}
    assert team["end_user_limits"] == NO_LIMITS | {"daily_nano_usd": 5}
    node = api.call("PUT", f"keys/{key.pk}/budget", {"limits": {"per_request_nano_usd": 7}}).json()
    assert (node["kind"], node["key"], node["limits"]["per_request_nano_usd"]) == ("key", str(key.pk), 7)
    moved = api.call("PATCH", f"budgets/{node['id']}", {"parent": team["id"]}).json()
    assert moved["parent"] == team["id"] and moved["limits"]["per_request_nano_usd"] == 7
    refused = api.call("DELETE", f"budgets/{team['id']}")
    assert error_of(refused, 409)["code"] == "budget_tree"
    user = api.call("PUT", f"budgets/{node['id']}/end-users", {"end_user": "ada", "limits": {"total_nano_usd": 1}})
    assert user.json()["end_user"] == "ada"
    shown = api.call("GET", f"budgets/{node['id']}/end-users").json()["results"]
    assert [one["limits"]["total_nano_usd"] for one in shown] == [1]
    root = api.call("PUT", "budgets/organization", {"limits": {"total_nano_usd": 10**10}}).json()
    kinds = [one["kind"] for one in api.call("GET", "budgets").json()["results"]]
    assert sorted(kinds) == ["key", "organization", "team"] and team["parent"] == root["id"]


@pytest.mark.parametrize("limits", [{"total_nano_usd": -1}, {"daily_nano_usd": 10**16}, {"monthly_nano_usd": 1.5}])
def test_a_limit_that_is_no_amount_is_refused_and_changes_nothing(api: Api, limits: dict[str, object]) -> None:
    refused = api.call("POST", "budgets", {"name": "x", "limits": limits})
    assert refused.status_code == 400 and not BudgetNode.objects.filter(kind="team").exists()


def test_a_webhook_has_a_secret_and_an_alert_is_listed(api: Api) -> None:
    webhook = api.call("POST", "webhooks", {"url": "https://hooks.example/x"}).json()
    assert webhook["secret"].startswith("whsec_")
    assert api.call("GET", "webhooks").json()["results"] == [webhook]
    assert api.call("POST", "webhooks", {"url": "file:///etc/passwd"}).status_code == 400
    assert api.call("DELETE", f"webhooks/{webhook['id']}").status_code == 204
    assert api.call("GET", "webhooks").json()["results"] == []
    root = api.call("PUT", "budgets/organization", {"limits": {"total_nano_usd": 10}}).json()
    organization = BudgetNode.objects.get(pk=root["id"]).organization
    BudgetAlert.objects.create(
        organization=organization,
        node_id=root["id"],
        node_kind="organization",
        node_name="acme",
        period="total",
        period_start="1970-01-01",
        percent=80,
        limit_nano_usd=10,
        spent_nano_usd=8,
    )
    (alert,) = api.call("GET", "budgets/alerts").json()["results"]
    assert (alert["budget"], alert["percent"], alert["spent_nano_usd"]) == (root["id"], 80, 8)
    assert Api.of(make_organization("other")).call("GET", "budgets/alerts").json()["results"] == []
