"""Each scope and each role opens what it names, and no more."""

from __future__ import annotations

import pytest
from django.test import Client

from marketplace.accounts.models import ApiKey, Membership
from marketplace.catalog.models import Model
from tests.database import written_rows
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.api.operations import operations
from tests.marketplace.api.scopes import ACCOUNT_FOR_KEYS, names, needed
from tests.marketplace.catalog.factories import (
    add_member,
    make_key,
    make_model,
    make_organization,
    make_user,
    make_version,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    organization = make_organization("acme")
    make_version(make_model(organization))
    return organization


def test_the_operations_need_the_scopes_that_the_table_says() -> None:
    declared = {(one.method, one.name): one.declared() for one in operations()}
    assert declared == needed()


def test_a_key_needs_account_where_a_person_needs_less_and_changes_nothing_without(acme) -> None:
    key, text = make_key(acme, *sorted(set(ApiKey.Scope.values) - {"account"}))
    api = Api(text)
    assert api.get("me").status_code == 200  # the key is noted as used
    by_name = {(one.method, one.name): one.path(key_id=key.pk) for one in operations()}
    bodies = {"keys": {"name": "x", "scopes": ["predict"]}, "key": {"name": "x"}, "key-guards": {"guards": {}}}
    before = written_rows()
    for method, name in names(ACCOUNT_FOR_KEYS):
        body = None if method == "GET" else bodies.get(name, {})
        response = api.call(method, by_name[method, name].removeprefix("/api/v1/"), body)
        assert error_of(response, 403)["code"] == "scope_missing", (method, name)
    assert written_rows() == before
    assert ApiKey.objects.get().revoked_at is None


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
