"""Wrong passwords are counted where they come from: a stranger can lock out their own network, and never the owner."""

from __future__ import annotations

import pytest
from django.core.cache import cache
from django.test import Client, RequestFactory

from marketplace.accounts import sign_in
from marketplace.accounts.models import User
from tests.marketplace.catalog.factories import PASSWORD, make_organization, make_user

pytestmark = pytest.mark.django_db
OWNER, STRANGER = "198.51.100.7", "203.0.113.9"


@pytest.fixture
def owner() -> User:
    user = make_user("owner@example.com")
    make_organization(owner=user)
    return user


def signs_in(client: Client, password: str, address: str, email: str = "owner@example.com") -> bool:
    answer = client.post("/accounts/login/", {"login": email, "password": password}, REMOTE_ADDR=address)
    return answer.status_code == 302


def guess(address: str, times: int) -> None:
    for _ in range(times):
        assert not signs_in(Client(), "wrong", address)


def exhaust_account() -> None:
    """Let so many wrong passwords have come from everywhere that places without a proof are refused."""
    place = sign_in.Place("owner@example.com", STRANGER)
    cache.set(sign_in._of_account(place), sign_in.PER_ACCOUNT, timeout=60)


def test_a_strangers_wrong_passwords_lock_their_network_and_not_the_owner(owner: User) -> None:
    guess(STRANGER, sign_in.PER_PLACE)
    assert not signs_in(Client(), PASSWORD, STRANGER)
    assert not signs_in(Client(), PASSWORD, "203.0.113.250"), "the neighbour in the same network is the same place"
    assert signs_in(Client(), PASSWORD, OWNER)


def test_the_last_try_before_the_limit_may_be_right(owner: User) -> None:
    guess(OWNER, sign_in.PER_PLACE - 1)
    assert signs_in(Client(), PASSWORD, OWNER)


def test_right_passwords_are_not_counted(owner: User) -> None:
    for _ in range(sign_in.PER_PLACE + 1):
        assert signs_in(Client(), PASSWORD, OWNER)


def test_guessing_from_everywhere_stops_new_places_and_never_a_device_that_signed_in_before(owner: User) -> None:
    known = Client()
    assert signs_in(known, PASSWORD, OWNER)
    known.post("/accounts/logout/")
    assert sign_in.COOKIE in known.cookies, "signing out keeps the device known"
    exhaust_account()
    assert not signs_in(Client(), PASSWORD, OWNER)
    page = Client().post("/accounts/login/", {"login": "owner@example.com", "password": PASSWORD}, REMOTE_ADDR=OWNER)
    assert "passkey" in page.content.decode() and "new password" in page.content.decode()
    assert signs_in(known, PASSWORD, "192.0.2.1")


def test_a_known_device_has_its_own_limit(owner: User) -> None:
    known = Client()
    assert signs_in(known, PASSWORD, OWNER)
    known.post("/accounts/logout/")
    for _ in range(sign_in.PER_PLACE):
        assert not signs_in(known, "wrong", OWNER)
    assert not signs_in(known, PASSWORD, OWNER)
    assert signs_in(Client(), PASSWORD, OWNER), "the network was not counted"


def test_a_device_known_to_another_account_proves_nothing(owner: User) -> None:
    other = make_user("other@example.com")
    make_organization(owner=other)
    stranger = Client()
    assert signs_in(stranger, PASSWORD, STRANGER, "other@example.com")
    stranger.post("/accounts/logout/")
    exhaust_account()
    assert not signs_in(stranger, PASSWORD, STRANGER)


@pytest.mark.parametrize("value", ["", "nonsense", "x:y:z", '["owner@example.com", "device"]'])
def test_a_made_up_cookie_proves_nothing(value: str) -> None:
    request = RequestFactory().get("/", REMOTE_ADDR=STRANGER)
    request.COOKIES[sign_in.COOKIE] = value
    assert sign_in.place_of(request, "owner@example.com").device == ""


def test_a_password_set_by_a_mailed_link_lets_its_place_in(owner: User) -> None:
    guess(OWNER, sign_in.PER_PLACE)
    exhaust_account()
    request = RequestFactory().get("/", REMOTE_ADDR=OWNER)
    sign_in.forget_all(sign_in.place_of(request, "Owner@example.com"))
    assert signs_in(Client(), PASSWORD, OWNER)


def test_addresses_of_one_ipv6_subscriber_are_one_place_and_others_are_not() -> None:
    one, same, other = (
        sign_in.Place("a@example.com", address) for address in ("2001:db8:0:1::1", "2001:db8:0:ff::9", "2001:db8:1::1")
    )
    assert one.key == same.key != other.key
    assert one.key != sign_in.Place("b@example.com", "2001:db8:0:1::1").key


def test_the_api_counts_with_the_page_and_lets_the_owner_through(owner: User) -> None:
    def token(password: str, address: str) -> int:
        body = {"email": "owner@example.com", "password": password}
        return Client().post("/api/v1/tokens", body, "application/json", REMOTE_ADDR=address).status_code

    guess(STRANGER, sign_in.PER_PLACE - 1)
    assert token("wrong", STRANGER) == 401
    assert token(PASSWORD, STRANGER) == 429
    assert token(PASSWORD, OWNER) == 201
