"""Each scope and each role opens what it names, and no more."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client

from marketplace.accounts.models import ApiKey, Membership
from marketplace.catalog.models import Model, Price, Version
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import (
    add_member,
    make_key,
    make_model,
    make_organization,
    make_user,
    make_version,
)

pytestmark = pytest.mark.django_db
ANY_ID = uuid.UUID(int=1)  # of nothing; fixed, because test names are made from it

A_RUN = f"run_{ANY_ID.hex}"
NEEDS = [
    ("publish", "POST", "organizations/acme/signing-keys", {"public_key": "A" * 43}),
    ("publish", "POST", "models", {"slug": "new", "title": "New"}),
    ("publish", "PATCH", "models/acme/triage", {"title": "New"}),
    ("publish", "GET", "models/acme/triage/protection", None),
    ("publish", "PATCH", "models/acme/triage/protection", {"on_copying": "stop"}),
    ("publish", "GET", "models/acme/triage/customers", None),
    ("publish", "POST", "models/acme/triage/customers/1", {"answer": "trust"}),
    ("predict", "POST", "models/acme/triage/more-calls", {"calls_per_day": 1}),
    ("publish", "POST", "models/acme/triage/prices", {"input_micro_usd_per_mtok": 1, "output_micro_usd_per_mtok": 1}),
    ("publish", "POST", "models/acme/triage/promises", {"kind": "valid", "bound": None}),
    ("publish", "POST", "models/acme/triage/versions", {"signing_key_id": str(ANY_ID), "package_size": 1}),
    ("publish", "PUT", "versions/{version}/package", None),
    ("publish", "HEAD", "versions/{version}/package", None),
    ("publish", "POST", "versions/{version}/complete", {"digest": "0" * 64, "wrapped_data_key": "AAAA"}),
    ("publish", "POST", "versions/{version}/publish", None),
    ("publish", "PATCH", "versions/{version}", {"changelog": "x"}),
    ("publish", "POST", "versions/{version}/rollout", {"percent": 1}),
    ("publish", "POST", "versions/{version}/make-default", None),
    ("publish", "POST", "versions/{version}/deprecate", {"ends_at": "2999-01-01T00:00:00Z"}),
    ("publish", "DELETE", "versions/{version}/deprecate", None),
    ("publish account", "GET", "models/acme/triage/rollout", None),
    ("publish account", "GET", "earnings/versions", None),
    ("publish account", "GET", "in-use", None),
    ("publish", "POST", "versions/{version}/retire", None),
    ("publish", "POST", "versions/{version}/revoke", {"reason": "x"}),
    ("account read", "GET", "runs", None),
    ("account read", "GET", f"runs/{A_RUN}", None),
    ("account read", "GET", f"runs/{A_RUN}/calls", None),
    ("account", "POST", f"runs/{A_RUN}/close", None),
    ("predict", "POST", "trials", {"first": "acme/triage", "second": "acme/triage@1"}),
    ("predict", "GET", f"trials/{ANY_ID}/pair", None),
    ("predict", "POST", f"trials/{ANY_ID}/pair", {"row_id": str(ANY_ID), "choice": "left"}),
    ("predict", "POST", f"trials/{ANY_ID}/cancel", None),
    ("predict", "DELETE", f"trials/{ANY_ID}/rows", None),
    ("predict account", "GET", "trials", None),
    ("predict account", "GET", f"trials/{ANY_ID}", None),
    ("publish read", "GET", "models/acme/triage/eval-sets", None),
    (
        "publish",
        "POST",
        "models/acme/triage/eval-sets",
        {"signing_key_id": str(ANY_ID), "package_size": 1, "rows": 1, "scorer": {"kind": "json"}},
    ),
    ("publish read", "GET", "models/acme/triage/eval-runs", None),
    ("publish read", "GET", f"eval-sets/{ANY_ID}", None),
    ("publish", "PUT", f"eval-sets/{ANY_ID}/package", None),
    ("publish", "HEAD", f"eval-sets/{ANY_ID}/package", None),
    ("publish", "POST", f"eval-sets/{ANY_ID}/complete", {"digest": "0" * 64, "wrapped_data_key": "AAAA"}),
    ("publish", "GET", f"eval-sets/{ANY_ID}/quote", None),
    ("publish", "POST", f"eval-sets/{ANY_ID}/runs", {}),
    ("publish read", "GET", f"eval-runs/{ANY_ID}", None),
    ("account", "GET", "wallet", None),
    ("account", "GET", "topups", None),
    ("account", "POST", "topups", {"amount_cents": 500}),
    ("account", "GET", f"topups/{ANY_ID}", None),
    ("account", "POST", f"topups/{ANY_ID}/cancel", None),
    ("account", "POST", "payouts/dashboard", None),
    ("account", "GET", f"topups/{ANY_ID}/refunds", None),
    ("account", "POST", f"topups/{ANY_ID}/refunds", {"amount_cents": 100}),
    ("account", "GET", "disputes", None),
    ("account read", "GET", "promise-refunds", None),
    ("account", "GET", "cards", None),
    ("account", "POST", "cards", None),
    ("account", "DELETE", f"cards/{ANY_ID}", None),
    ("account", "GET", "auto-top-up", None),
    ("account", "PUT", "auto-top-up", {"card_id": str(ANY_ID)}),
    ("account", "DELETE", "auto-top-up", None),
    ("account", "GET", "keys", None),
    ("account", "POST", "keys", {"name": "x", "scopes": ["predict"]}),
    ("account", "GET", "keys/{key}", None),
    ("account", "PATCH", "keys/{key}", {"name": "x"}),
    ("account", "POST", "keys/{key}/rotate", None),
    ("account", "PUT", "keys/{key}/budget", {}),
    ("account", "GET", "keys/{key}/guards", None),
    ("account", "PUT", "keys/{key}/guards", {"guards": {}}),
    ("publish read", "GET", "models/acme/triage/guards", None),
    ("publish", "PUT", "models/acme/triage/guards", {"guards": {}}),
    ("account read", "GET", "budgets", None),
    ("account", "POST", "budgets", {"name": "x"}),
    ("account read", "GET", "budgets/alerts", None),
    ("account", "PUT", "budgets/organization", {}),
    ("account read", "GET", f"budgets/{ANY_ID}", None),
    ("account", "PATCH", f"budgets/{ANY_ID}", {}),
    ("account", "DELETE", f"budgets/{ANY_ID}", None),
    ("account", "GET", f"budgets/{ANY_ID}/end-users", None),
    ("account", "PUT", f"budgets/{ANY_ID}/end-users", {"end_user": "x", "limits": {}}),
    ("publish account", "GET", "alerts", None),
    ("publish account", "GET", "alerts/kinds", None),
    ("publish account", "PUT", "alerts/kinds/model.drift", {"muted": True}),
    ("publish account read", "GET", "models/acme/triage/in-use", None),
    ("publish account read", "GET", "models/acme/triage/alarms", None),
    ("publish", "PUT", "models/acme/triage/alarms", {"drift": 0.5}),
    ("account", "GET", "webhooks", None),
    ("account", "POST", "webhooks", {"url": "https://a.example"}),
    ("account", "GET", f"webhooks/{ANY_ID}", None),
    ("account", "PATCH", f"webhooks/{ANY_ID}", {}),
    ("account", "DELETE", f"webhooks/{ANY_ID}", None),
    ("account", "POST", f"webhooks/{ANY_ID}/rotate-secret", None),
    ("account", "POST", f"webhooks/{ANY_ID}/test", None),
    ("account", "GET", "webhook-deliveries", None),
    ("account", "GET", "webhook-deliveries/1", None),
    ("account", "POST", "webhook-deliveries/1/replay", None),
    ("account read", "GET", "usage", None),
    ("account read", "GET", "usage/summary", None),
    ("account", "GET", "statements", None),
    ("account", "GET", "billing-profile", None),
    ("account", "PUT", "billing-profile", {"legal_name": "x"}),
    ("account", "GET", "papers", None),
    ("account", "GET", f"papers/{ANY_ID}/pdf", None),
    ("account", "GET", f"papers/{ANY_ID}/csv", None),
    ("account", "GET", "statements/lines", None),
    ("publish account read", "GET", "organizations/acme/signing-keys", None),
    ("publish account read", "GET", "models/acme/triage/custody", None),
    ("publish account read", "GET", "custody", None),
    ("publish account read", "GET", "versions/{version}", None),
    ("publish account read", "GET", "versions/{version}/holders", None),
    ("account read", "GET", "organizations/acme", None),
    ("account", "PATCH", "organizations/acme", {"name": "x"}),
    ("account", "PUT", "organizations/acme/logo", None),
    ("account", "DELETE", "organizations/acme/logo", None),
    ("account read", "GET", "organizations/acme/members", None),
    ("account", "PATCH", f"organizations/acme/members/{ANY_ID}", {"role": "admin"}),
    ("account", "DELETE", f"organizations/acme/members/{ANY_ID}", None),
    ("account", "GET", "organizations/acme/invites", None),
    ("account", "POST", "organizations/acme/invites", {"email": "a@example.com", "role": "admin"}),
    ("account", "DELETE", f"organizations/acme/invites/{ANY_ID}", None),
    ("account", "POST", f"organizations/acme/invites/{ANY_ID}/resend", None),
    ("account read", "GET", "organizations/acme/transfer", None),
    ("account", "POST", "organizations/acme/transfer", {"user_id": str(ANY_ID)}),
    ("account read", "DELETE", "organizations/acme/transfer", None),
    ("account read", "POST", "organizations/acme/transfer/accept", None),
    ("account read", "POST", "organizations/acme/leave", None),
    ("account", "GET", "audit", None),
    ("account", "GET", "audit/export", None),
    ("account", "GET", "audit/seals", None),
    ("publish account", "GET", "earnings", None),
    ("publish account", "GET", "payouts", None),
    ("publish account", "GET", "payouts/overview", None),
    ("publish account", "GET", f"payouts/{ANY_ID}", None),
    ("publish account", "GET", f"payouts/{ANY_ID}/statement", None),
    ("account", "POST", "payouts", {}),
    ("account", "PATCH", "payouts/overview", {"schedule": "weekly"}),
    ("account", "POST", "payouts/setup", None),
]


@pytest.fixture
def acme():
    organization = make_organization("acme")
    make_version(make_model(organization))
    return organization


def _state() -> tuple[object, ...]:
    return Version.objects.values_list("state", "report").get(), Model.objects.get().title, Price.objects.count()


@pytest.mark.parametrize(("needed", "method", "path", "body"), NEEDS)
def test_a_key_without_the_scope_is_refused_and_nothing_changes(acme, needed, method, path, body) -> None:
    others = sorted(set(ApiKey.Scope.values) - set(needed.split()))
    key, text = make_key(acme, *others)
    path = path.format(version=Version.objects.get().id, key=key.id)
    before = _state()
    api = Api(text)
    response = api.put_bytes(path, b"x", 0) if method == "PUT" and body is None else api.call(method, path, body)
    assert response.status_code == 403
    if method != "HEAD":
        assert error_of(response, 403)["code"] == "scope_missing"
    assert _state() == before
    assert ApiKey.objects.count() == 1 and ApiKey.objects.get().revoked_at is None
    anonymous = Api().put_bytes(path, b"x", 0) if method == "PUT" else Api().call(method, path, body)
    assert anonymous.status_code == 401
    assert anonymous["WWW-Authenticate"].startswith("Bearer")


def test_a_key_cannot_hand_out_what_it_may_not(acme) -> None:
    _, text = make_key(acme, "account")
    api = Api(text)
    error = error_of(api.post("keys", {"name": "more", "scopes": ["predict", "publish"]}), 403)
    assert (error["code"], error["field"]) == ("scope_missing", "scopes")
    stronger, _ = make_key(acme, "publish")
    error_of(api.post(f"keys/{stronger.id}/rotate", {}), 403)
    assert ApiKey.objects.count() == 2
    assert api.post("keys", {"name": "spend", "scopes": ["predict", "account"]}).status_code == 201


@pytest.mark.parametrize(
    ("role", "may_publish", "may_account"),
    [("owner", True, True), ("admin", True, True), ("developer", True, False), ("billing", False, True)],
)
def test_a_session_has_the_scopes_of_its_role(acme, role, may_publish, may_account) -> None:
    user = add_member(acme, role)
    client = Client()
    client.force_login(user)
    patched = client.patch("/api/v1/models/acme/triage", {"title": role}, content_type="application/json")
    assert patched.status_code == (200 if may_publish else 403)
    assert (Model.objects.get().title == role) is may_publish
    assert client.get("/api/v1/wallet").status_code == (200 if may_account else 403)


def test_a_session_without_csrf_token_changes_nothing(acme) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(acme.memberships.get().user)
    response = client.patch("/api/v1/models/acme/triage", {"title": "forged"}, content_type="application/json")
    error_of(response, 403)
    assert Model.objects.get().title == "Triage"


def test_a_user_of_several_organizations_says_which(acme) -> None:
    user = add_member(acme, Membership.Role.OWNER)
    other = make_organization("other", owner=user)
    stranger = make_organization("stranger")
    client = Client()
    client.force_login(user)
    assert error_of(client.get("/api/v1/wallet"), 400)["code"] == "organization_required"
    for name in (acme.slug, other.slug):
        assert client.get("/api/v1/wallet", headers={"X-Organization": name}).status_code == 200
    for name in (stranger.slug, "nobody", "x" * 500, "\x00"):
        error_of(client.get("/api/v1/wallet", headers={"X-Organization": name}), 404)
    me = client.get("/api/v1/me", headers={"X-Organization": "other"}).json()
    assert me["organization"]["slug"] == "other"
    assert [one["slug"] for one in me["organizations"]] == ["acme", "other"]


def test_a_key_speaks_for_its_organization_alone(acme) -> None:
    owner = acme.memberships.get().user
    make_organization("secret", owner=owner)
    me = Api.of(acme, "predict").get("me").json()
    assert me["organization"]["slug"] == "acme"
    assert [one["slug"] for one in me["organizations"]] == ["acme"]
    assert me["scopes"] == ["predict"]
    assert "key" not in me["key"]


def test_a_key_whose_maker_left_speaks_for_its_organization_without_a_role(acme) -> None:
    key, text = make_key(acme)
    ApiKey.objects.filter(pk=key.pk).update(created_by=None)
    me = Api(text).get("me").json()
    assert (me["email"], me["organizations"], me["key"]["id"]) == (None, [], str(key.pk))
    assert (me["organization"]["slug"], me["organization"]["role"]) == ("acme", None)


def test_a_revoked_an_expired_and_a_made_up_key_are_refused(acme) -> None:
    key, text = make_key(acme)
    for wrong in (text[:-1] + ("A" if text[-1] != "A" else "B"), "ik_x", "ik_" + "a" * 12 + "_" + "A" * 40, "é"):
        error_of(Api(wrong.encode().decode("latin1")).get("me"), 401)
    assert Api(text).get("me").status_code == 200
    Api.of(acme).call("DELETE", f"keys/{key.id}")
    assert error_of(Api(text).get("me"), 401)["code"] == "revoked_api_key"
    _, old = make_key(acme)
    ApiKey.objects.filter(revoked_at=None).update(expires_at="2020-01-01T00:00:00Z")
    assert error_of(Api(old).get("me"), 401)["code"] == "expired_api_key"


def test_a_key_without_account_revokes_itself_and_no_other(acme) -> None:
    own, text = make_key(acme, "publish")
    other, _ = make_key(acme)
    assert error_of(Api(text).call("DELETE", f"keys/{other.id}"), 403)["code"] == "scope_missing"
    assert ApiKey.objects.get(pk=other.pk).revoked_at is None
    assert Api(text).call("DELETE", f"keys/{own.id}").status_code == 204
    assert error_of(Api(text).get("me"), 401)["code"] == "revoked_api_key"


def test_a_session_creates_an_organization_with_its_wallet_and_a_key_does_not(acme) -> None:

    body = {"slug": "fresh", "name": "Fresh"}
    assert error_of(Api.of(acme).post("organizations", body), 403)["code"] == "session_required"
    client = Client()
    client.force_login(make_user())
    response = client.post("/api/v1/organizations", body, content_type="application/json")
    assert response.status_code == 201 and response.json()["role"] == "owner"
    for slug, status in (("fresh", 409), ("admin", 400), ("Bad Slug", 400), ("-x", 400), ("x" * 41, 400)):
        response = client.post("/api/v1/organizations", {"slug": slug, "name": "x"}, content_type="application/json")
        assert error_of(response, status)["field"] == "slug"
