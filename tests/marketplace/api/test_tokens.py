"""E-mail and password for a key; and the limits on guessing."""

from __future__ import annotations

import pytest
from django.core.cache import cache

from marketplace.accounts.models import ApiKey, Membership
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import PASSWORD, add_member, make_organization, make_user

pytestmark = pytest.mark.django_db


def sign_in(email: str, password: str = PASSWORD, **body):
    return Api().post("tokens", {"email": email, "password": password, **body})


def test_a_token_works_and_is_shown_once() -> None:
    user = make_user("ada@example.com")
    make_organization("acme", owner=user)
    response = sign_in("Ada@Example.com")
    assert response.status_code == 201
    key = response.json()["key"]
    assert response.json()["scopes"] == ["account", "publish"]
    assert response.json()["organization"] == "acme"
    assert Api(key).get("me").json()["email"] == "ada@example.com"
    assert key not in Api(key).get("keys").content.decode()
    assert key.encode() not in bytes(ApiKey.objects.get().digest)


def test_a_wrong_password_and_an_unknown_address_are_told_alike() -> None:
    user = make_user("ada@example.com")
    make_organization("acme", owner=user)
    wrong, unknown = sign_in("ada@example.com", "wrong"), sign_in("nobody@example.com", "wrong")
    assert error_of(wrong, 401)["message"] == error_of(unknown, 401)["message"]
    user.is_active = False
    user.save()
    assert error_of(sign_in("ada@example.com"), 401)["message"] == wrong.json()["error"]["message"]
    assert not ApiKey.objects.exists()


def test_ten_wrong_passwords_close_an_address_for_a_while_even_to_the_right_one() -> None:
    make_organization("acme", owner=make_user("ada@example.com"))
    make_organization("other", owner=make_user("bob@example.com"))
    for _ in range(10):
        error_of(sign_in("ada@example.com", "wrong"), 401)
    assert error_of(sign_in("ADA@example.com"), 429)["code"] == "too_many_failures"
    assert sign_in("bob@example.com").status_code == 201
    assert ApiKey.objects.count() == 1


def test_an_address_that_asks_too_often_waits_and_cannot_pretend_to_be_another() -> None:
    make_organization("acme", owner=make_user("ada@example.com"))
    for number in range(30):
        assert Api(**{"X-Forwarded-For": f"10.0.0.{number}"}).post("tokens", {}).status_code == 400
    response = Api(**{"X-Forwarded-For": "10.9.9.9"}).post("tokens", {"email": "ada@example.com", "password": PASSWORD})
    assert error_of(response, 429)["code"] == "rate_limited"
    assert 1 <= int(response["Retry-After"]) <= 61
    assert not ApiKey.objects.exists()
    cache.clear()
    assert sign_in("ada@example.com").status_code == 201


def test_a_member_of_several_organizations_names_one() -> None:
    user = make_user("ada@example.com")
    make_organization("acme", owner=user)
    make_organization("beta", owner=user)
    make_organization("foreign")
    error = error_of(sign_in("ada@example.com"), 400)
    assert error["code"] == "organization_required" and "acme, beta" in error["message"]
    assert sign_in("ada@example.com", organization="beta").json()["organization"] == "beta"
    error_of(sign_in("ada@example.com", organization="foreign"), 404)
    error_of(sign_in("ada@example.com", organization="nobody"), 404)


@pytest.mark.parametrize(
    ("role", "scopes", "status"),
    [
        ("billing", ["account", "predict"], 201),
        ("billing", ["publish"], 403),
        ("developer", ["publish", "predict"], 201),
        ("developer", ["account"], 403),
        ("admin", ["publish", "predict", "account"], 201),
    ],
)
def test_a_token_carries_no_more_than_the_role(role, scopes, status) -> None:
    user = add_member(make_organization("acme"), Membership.Role(role))
    assert sign_in(user.email, scopes=scopes).status_code == status
    assert ApiKey.objects.count() == (1 if status == 201 else 0)
