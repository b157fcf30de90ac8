"""What a key reaches binds what it makes: the one rule, and every operation that applies it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.budgets import tree
from billing.limited_keys import Limits, create_limited_key, reach_of
from billing.models import BudgetNode
from marketplace.accounts import audit
from marketplace.accounts.errors import NotAllowed
from marketplace.accounts.key_reach import PARTS, Reach, beyond, is_within
from marketplace.accounts.models import ApiKey, Organization
from marketplace.calls import open_purse
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_key, make_organization

ADDRESSES = ["10.0.0.1", "10.0.1.1", "10.1.0.1", "192.0.2.1", "2001:db8::1"]
NETWORKS = ["10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.1.0.0/16", "192.0.2.1/32", "2001:db8::/32", "0.0.0.0/0"]
TIMES = [datetime(2030, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
# No bound on the clock of a busy machine.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
reaches = st.builds(
    Reach,
    scopes=st.frozensets(st.sampled_from(["predict", "publish", "account", "read"])),
    models=st.frozensets(st.sampled_from(["a/x", "a/y", "b/z"])),
    networks=st.frozensets(st.sampled_from(NETWORKS), max_size=3),
    expires_at=st.none() | st.sampled_from(TIMES),
    guards=st.dictionaries(st.sampled_from(["email", "card"]), st.sampled_from(["mask", "refuse"])),
    limits=st.tuples(*[st.none() | st.integers(0, 3)] * 4),
)


def may(reach: Reach) -> set[tuple[str, Any]]:
    """Everything that a reach allows, as single acts: what the rule must be about, written without it."""
    allowed: set[tuple[str, Any]] = {("scope", one) for one in reach.scopes - {"read"}}
    allowed |= {("scope", "predict")} if "account" in reach.scopes else set()
    allowed |= {("model", one) for one in ["a/x", "a/y", "b/z", "c/new"] if not reach.models or one in reach.models}
    allowed |= {
        ("address", one)
        for one in [*ADDRESSES, "203.0.113.9"]
        if not reach.networks or any(ip_address(one) in ip_network(net) for net in reach.networks)
    }
    allowed |= {
        ("time", one)
        for one in [*TIMES, datetime(2999, 1, 1, tzinfo=UTC)]
        if reach.expires_at is None or one <= reach.expires_at
    }
    weight = {"pass": 0, "mask": 1, "refuse": 2}
    allowed |= {
        ("text", (kind, rank))
        for kind in ("email", "card")
        for rank in range(3)
        if rank >= weight[reach.guards.get(kind, "pass")]
    }
    allowed |= {
        ("spend", (place, amount))
        for place, most in enumerate(reach.limits)
        for amount in range(5)
        if most is None or amount <= most
    }
    return allowed


@PATIENT
@given(reaches, reaches)
def test_a_reach_within_another_allows_nothing_that_the_other_does_not(inner: Reach, outer: Reach) -> None:
    if is_within(inner, outer):
        assert may(inner) <= may(outer)
    elif beyond(inner, outer) != "networks":  # two networks may cover what one covers: the rule asks for one
        assert not may(inner) <= may(outer)


@PATIENT
@given(reaches, reaches, reaches)
def test_the_rule_is_an_order(one: Reach, two: Reach, three: Reach) -> None:
    assert is_within(one, one) and is_within(one, Reach(scopes=frozenset({"account", "publish", "predict", "read"})))
    if is_within(one, two) and is_within(two, three):
        assert is_within(one, three)


@pytest.fixture
def acme() -> Organization:
    return make_organization("acme")


def limited(acme: Organization, **limits: Any) -> tuple[ApiKey, Api]:
    """A key that is limited in everything, and may manage keys."""
    owner = acme.memberships.get(role="owner").user
    key, text = create_limited_key(
        organization=acme,
        name="limited",
        scopes=["account"],
        created_by=owner,
        expires_at=timezone.now() + timedelta(days=30),
        limits=limits.pop("limits", Limits(total_nano_usd=1000, monthly_nano_usd=500)),
        networks=["127.0.0.0/8"],
        models=["maker/thing"],
        **limits,
    )
    return key, Api(text)


def body(**changes: Any) -> dict[str, Any]:
    """A key that is just within the limited one."""
    return {
        "name": "made",
        "scopes": ["predict"],
        "models": ["maker/thing"],
        "networks": ["127.0.0.1/32"],
        "expires_at": (timezone.now() + timedelta(days=29)).isoformat(),
        "total_limit_nano_usd": 1000,
        "monthly_limit_nano_usd": 500,
    } | changes


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"scopes": ["publish"]}, "scopes"),
        ({"models": []}, "models"),
        ({"models": ["maker/thing", "maker/other"]}, "models"),
        ({"networks": []}, "networks"),
        ({"networks": ["0.0.0.0/0"]}, "networks"),
        ({"expires_at": None}, "expires_at"),
        ({"expires_at": "2999-01-01T00:00:00Z"}, "expires_at"),
        ({"total_limit_nano_usd": None}, "limits"),
        ({"total_limit_nano_usd": 1001}, "limits"),
        ({"monthly_limit_nano_usd": 501}, "limits"),
    ],
)
def test_a_key_makes_none_that_reaches_beyond_itself(acme: Organization, changes: dict[str, Any], part: str) -> None:
    _, api = limited(acme)
    assert error_of(api.post("keys", body(**changes)), 403)["field"] == part
    assert ApiKey.objects.count() == 1
    assert api.post("keys", body()).status_code == 201


@pytest.mark.django_db
def test_what_a_key_with_a_budget_makes_spends_of_that_budget(acme: Organization) -> None:
    key, api = limited(acme)
    first, second = (api.post("keys", body()).json()["id"] for _ in range(2))
    nodes = {str(node.api_key_id): node for node in BudgetNode.objects.filter(kind="key")}
    assert nodes[first].parent_id == nodes[second].parent_id == nodes[str(key.pk)].pk
    assert api.call("PATCH", f"budgets/{nodes[first].pk}", {"parent": None}).status_code == 403


@pytest.mark.django_db
def test_a_key_lifts_no_limit_of_its_own(acme: Organization) -> None:
    owner_api = Api(make_key(acme)[1])
    root = owner_api.put("budgets/organization", {"limits": {"total_nano_usd": 10_000}}).json()
    team = owner_api.post("budgets", {"name": "t", "limits": {"total_nano_usd": 2000}}).json()
    key, api = limited(acme)
    node = BudgetNode.objects.get(api_key=key)
    tree.move(node, parent_id=team["id"])
    for path in (f"keys/{key.pk}/budget", f"budgets/{node.pk}"):
        method = "PUT" if path.startswith("keys") else "PATCH"
        for limits in ({}, {"total_nano_usd": 1001, "monthly_nano_usd": 500}, {"total_nano_usd": 1000}):
            assert error_of(api.call(method, path, {"limits": limits}), 403)["code"] == "beyond_own_limits"
    for path, method in ((f"budgets/{team['id']}", "PATCH"), ("budgets/organization", "PUT")):
        error_of(api.call(method, path, {"limits": {}}), 403)
    error_of(api.call("PATCH", f"budgets/{node.pk}", {"parent": root["id"]}), 403)
    for change in ({"models": []}, {"models": ["maker/other"]}, {"networks": []}, {"networks": ["0.0.0.0/0"]}):
        error_of(api.call("PATCH", f"keys/{key.pk}", change), 403)
    node.refresh_from_db()
    key.refresh_from_db()
    assert (node.total_limit_nano_usd, node.monthly_limit_nano_usd, str(node.parent_id)) == (1000, 500, team["id"])
    assert (key.allowed_models, key.allowed_networks) == (["maker/thing"], ["127.0.0.0/8"])
    taken = api.put(f"keys/{key.pk}/budget", {"limits": {"total_nano_usd": 999, "monthly_nano_usd": 500}})
    assert taken.status_code == 200, "it may take away from itself"


@pytest.mark.django_db
def test_a_key_gives_other_keys_no_more_than_it_has_and_renews_no_stronger_one(acme: Organization) -> None:
    _, api = limited(acme)
    strong, _ = make_key(acme, "predict")
    weak, _ = create_limited_key(
        organization=acme,
        name="weak",
        scopes=["predict"],
        created_by=None,
        expires_at=None,
        limits=Limits(total_nano_usd=10),
        models=["maker/thing"],
    )
    error_of(api.put(f"keys/{weak.pk}/budget", {"limits": {"total_nano_usd": 5000}}), 403)
    error_of(api.call("PATCH", f"keys/{weak.pk}", {"models": ["maker/other"]}), 403)
    for key in (strong, weak):
        assert error_of(api.post(f"keys/{key.pk}/rotate", {}), 403)["code"] == "beyond_own_limits"
    assert api.call("PATCH", f"keys/{strong.pk}", {"models": ["maker/thing"]}).status_code == 200, "it may take away"
    assert ApiKey.objects.count() == 3


@pytest.mark.django_db
def test_a_key_rotates_itself_and_its_budget_and_end_stay(acme: Organization) -> None:
    key, api = limited(acme)
    made = api.post(f"keys/{key.pk}/rotate", {})
    assert made.status_code == 201
    new = ApiKey.objects.get(pk=made.json()["id"])
    assert reach_of(new) == reach_of(ApiKey.objects.get(pk=key.pk)) or new.expires_at == key.expires_at
    assert tree.key_node(new) == tree.key_node(key)


@pytest.mark.django_db
def test_runs_that_a_key_begins_spend_within_it(acme: Organization) -> None:
    key, _ = limited(acme)
    with audit.acting(audit.Actor(key=key)):
        with pytest.raises(NotAllowed):
            open_purse(organization=acme, name="too much", budget_nano_usd=1001)
        purse = open_purse(organization=acme, name="a run", budget_nano_usd=1000)
    assert (purse.allowed_models, purse.expires_at) == (["maker/thing"], min(purse.expires_at, key.expires_at))
    assert tree.key_node(purse).parent == tree.key_node(key)


@pytest.mark.django_db
def test_a_key_invites_nobody_and_changes_no_role(acme: Organization) -> None:
    api = Api(make_key(acme)[1])
    owner = acme.memberships.get(role="owner").user
    for method, path, sent in (
        ("POST", "organizations/acme/invites", {"email": "a@example.com", "role": "owner"}),
        ("POST", "organizations/acme/transfer", {"user_id": str(owner.pk)}),
        ("PATCH", f"organizations/acme/members/{owner.pk}", {"role": "viewer"}),
    ):
        assert error_of(api.call(method, path, sent), 403)["code"] == "session_required"
    assert acme.memberships.get().role == "owner" and not acme.invites.exists()


@pytest.mark.django_db
def test_a_key_with_a_budget_begins_no_evaluation_that_is_not_counted_in_it(acme: Organization) -> None:
    owner = acme.memberships.get(role="owner").user
    _, text = create_limited_key(
        organization=acme,
        name="x",
        scopes=["publish"],
        created_by=owner,
        expires_at=None,
        limits=Limits(total_nano_usd=1),
    )
    path = "eval-sets/00000000-0000-0000-0000-000000000001/runs"
    assert error_of(Api(text).post(path, {}), 403)["code"] == "beyond_own_limits"
    assert error_of(Api(make_key(acme)[1]).post(path, {}), 404)


@pytest.mark.django_db
def test_people_and_keys_without_limits_are_bound_by_nothing_new(acme: Organization) -> None:
    api = Api(make_key(acme)[1])
    wide = {"name": "x", "scopes": ["predict", "publish", "account", "read"]}
    assert api.post("keys", wide).status_code == 201
    assert set(PARTS) == {"scopes", "models", "networks", "expires_at", "guards", "limits"}
