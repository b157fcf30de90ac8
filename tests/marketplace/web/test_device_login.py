"""A login of the command line over HTTP: the machine asks, a person decides in the browser, the machine gets a key."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from allauth.idp.oidc.internal.oauthlib import device_codes
from allauth.idp.oidc.models import Token
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from marketplace.accounts import device_login
from marketplace.accounts.models import ApiKey, AuditEntry, Membership
from tests.marketplace.catalog.factories import PASSWORD
from tests.marketplace.web.conftest import World

CLIENT = {"client_id": "intarsia-cli"}
GRANT = "urn:ietf:params:oauth:grant-type:device_code"
ASKED = {"name": "intarsia on ada-laptop", "scope": "publish read", "days": "30"}


@pytest.fixture(autouse=True)
def _no_limits_of_before(world: World) -> None:
    cache.clear()


def post(path: str, **fields: str) -> Any:
    return Client().post(path, urlencode(fields), content_type="application/x-www-form-urlencoded")


def ask(**said: str) -> dict[str, Any]:
    answer = post("/oauth/device/code", **CLIENT, **{**ASKED, **said})
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def poll(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Ask for the token as if the interval of five seconds had passed."""
    key = device_codes.cache_device_code_key(asked["device_code"])
    state = cache.get(key)
    if state is not None:
        cache.set(key, {**state, "last_poll_at": 0})
    answer = post("/oauth/token", **CLIENT, grant_type=GRANT, device_code=asked["device_code"])
    return answer.status_code, answer.json()


def decide(client: Client, asked: dict[str, Any], **form: Any) -> Any:
    sent = {"organization": "northbank", "scopes": ["read"], "action": "confirm", **form}
    return client.post("/device", {"code": asked["user_code"], **sent})


def done(answer: Any) -> str:
    assert answer.status_code == 302, answer.content
    return str(answer.client.get(answer["Location"]).content.decode())


def trade(token: str) -> Any:
    return Client().post("/api/v1/tokens", {"device_token": token}, content_type="application/json")


def error(answer: Any) -> str:
    return str(answer.json()["error"]["code"])


def test_a_confirmed_login_gets_one_key_of_what_the_person_chose(world: World) -> None:
    asked, browser = ask(), world.client(world.consumer)
    assert asked["expires_in"] == 600 and asked["verification_uri"].endswith("/device")
    assert poll(asked)[1]["error"] == "authorization_pending"
    page = browser.get(asked["verification_uri_complete"]).content.decode()
    assert asked["user_code"] in page and "intarsia on ada-laptop" in page and "30 days" in page
    assert re.search(r'value="publish"[^>]*checked', page) and not re.search(r'value="account"[^>]*checked', page)
    assert "Confirmed" in done(decide(browser, asked, scopes=["read", "account"]))
    status, given = poll(asked)
    assert status == 200 and "refresh_token" not in given
    assert poll(asked)[1]["error"] == "invalid_grant", "a code gives one token"

    made = trade(given["access_token"])
    assert made.status_code == 201, made.content
    key = ApiKey.objects.get(pk=made.json()["id"])
    assert (key.name, key.scopes, key.organization.slug) == (ASKED["name"], ["account", "read"], "northbank")
    assert timedelta(days=29) < key.expires_at - timezone.now() < timedelta(days=31)
    me = Client().get("/api/v1/me", headers={"Authorization": f"Bearer {made.json()['key']}"})
    assert me.json()["organization"]["slug"] == "northbank" and me.json()["email"] == world.consumer.email
    entry = AuditEntry.objects.filter(act="key.created").latest("id")
    assert entry.user_id == world.consumer.pk
    again = trade(given["access_token"])
    assert again.status_code == 401 and error(again) == "invalid_device_token" and not Token.objects.exists()


def test_whoever_is_denied_or_late_or_too_fast_gets_nothing(world: World) -> None:
    browser = world.client(world.consumer)
    asked = ask()
    assert "gets nothing" in done(decide(browser, asked, action="deny"))
    assert poll(asked)[1]["error"] == "access_denied"
    assert decide(browser, asked).status_code == 400, "nobody can decide twice"

    fast = ask()
    sent = {**CLIENT, "grant_type": GRANT, "device_code": fast["device_code"]}
    assert [post("/oauth/token", **sent).json()["error"] for _ in range(2)] == [
        "authorization_pending",
        "slow_down",
    ]
    with device_login.polling(fast["device_code"]):
        assert poll(fast)[1]["error"] == "slow_down", "nobody polls while somebody else does"
    cache.clear()  # as ten minutes do
    assert poll(fast)[1]["error"] == "invalid_grant" and decide(browser, fast).status_code == 400

    confirmed = ask()
    decide(browser, confirmed)
    token = poll(confirmed)[1]["access_token"]
    Token.objects.update(expires_at=timezone.now())
    assert error(trade(token)) == "invalid_device_token" and error(trade("x" * 86)) == "invalid_device_token"


def test_roles_are_asked_when_confirming_and_again_when_trading(world: World) -> None:
    asked, developer = ask(), world.client(world.developer)
    page = developer.get("/device", {"code": asked["user_code"]}).content.decode()
    assert 'value="predict"' in page and 'value="account"' not in page, "what the role cannot grant is not offered"
    assert decide(developer, asked, scopes=["account"]).status_code == 400
    assert decide(developer, asked, organization="ledgerline").status_code == 400, "not an organization of theirs"
    assert decide(developer, asked, scopes=[]).status_code == 400
    assert poll(asked)[1]["error"] == "authorization_pending"
    assert "Confirmed" in done(decide(developer, asked, scopes=["publish"]))
    assert decide(world.client(world.consumer), asked).status_code == 400, "a code belongs to who confirmed it first"
    token = poll(asked)[1]["access_token"]
    Membership.objects.filter(user=world.developer).update(role="viewer")
    assert error(trade(token)) == "scope_missing"
    Membership.objects.filter(user=world.developer).delete()
    assert trade(token).status_code == 404 and not ApiKey.objects.filter(name=ASKED["name"]).exists()


def test_the_page_asks_for_a_sign_in_and_a_fresh_session(world: World) -> None:
    asked = ask()
    page = f"/device?code={asked['user_code']}"
    sent = Client().get(page)
    assert sent.status_code == 302 and "/accounts/login/" in sent["Location"] and asked["user_code"] in sent["Location"]
    browser = world.client(world.consumer)
    session = browser.session
    session.update({"signed_in_at": 0, "account_authentication_methods": []})
    session.save()
    late = decide(browser, asked)
    assert late.status_code == 302 and late["Location"].startswith("/accounts/reauthenticate/")
    assert poll(asked)[1]["error"] == "authorization_pending"
    proof = browser.post("/accounts/reauthenticate/", {"password": PASSWORD, "next": "/device"})
    assert "Confirmed" in done(proof) and poll(asked)[0] == 200, "the form went on by itself"


def test_a_machine_cannot_ask_for_anything_else(world: World) -> None:
    for said in ({"scope": "openid"}, {"days": "0"}, {"days": "99999"}, {"name": "x" * 101}, {"organization": "A b"}):
        answer = post("/oauth/device/code", **CLIENT, **{**ASKED, **said})
        assert answer.status_code == 400 and answer.json() == {"error": "invalid_request"}
    assert post("/oauth/device/code", client_id="other").json() == {"error": "invalid_client"}
    for grant in ("authorization_code", "client_credentials", "refresh_token"):
        answer = post("/oauth/token", **CLIENT, grant_type=grant, device_code="x")
        assert answer.json() == {"error": "unsupported_grant_type"}


def test_guessing_codes_is_limited(world: World) -> None:
    asked, browser = ask(), world.client(world.consumer)
    for number in range(20):
        assert browser.get("/device", {"code": f"AAAA-{number:04}"}).status_code == 400
    assert decide(browser, asked).status_code == 400, "the right one too, for a minute"
    for _ in range(19):
        ask()
    assert post("/oauth/device/code", **CLIENT, **ASKED).status_code == 429
