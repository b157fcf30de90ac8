"""Promises and refunds where people and programs read them."""

from __future__ import annotations

import pytest
from django.test import Client

from billing.rollups.services import roll_up
from marketplace.accounts.models import Membership
from marketplace.promises import services
from marketplace.promises.models import Promise, PromiseKind
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_key, make_organization, make_user
from tests.marketplace.promises.conftest import AFTERWARDS, MONTH, Market


@pytest.fixture
def judged(market: Market) -> Market:
    """A month in which the creator's promise was kept and the platform's was broken."""
    market.promise(PromiseKind.VALID, 9_000)
    market.promise(PromiseKind.TTFT, 2_000)
    buyer = market.buyer()
    Membership.objects.create(organization=buyer, user=make_user("buyer@example.com"), role="owner")
    for _ in range(11):
        market.call(buyer, ttft_ms=2_500)
    market.cut_off(buyer)
    services.keep_promises(now=AFTERWARDS)
    roll_up()
    return market


def _signed_in(email: str) -> Client:
    client = Client()
    client.force_login(Membership.objects.get(user__email=email).user)
    return client


def test_the_models_page_says_what_is_promised_and_what_was_kept(judged: Market) -> None:
    page = Client().get(f"/models/{judged.model.full_name}").content.decode()
    assert "95 of 100 calls begin to answer within 2 s" in page and "90 % of answers are whole and valid" in page
    assert f"{MONTH:%B %Y}: p95 2.5 s of 11 calls, missed" in page
    assert f"{MONTH:%B %Y}: 91.66 % valid of 12 calls, kept" in page


def test_the_api_says_the_same_to_anybody(judged: Market) -> None:
    found = {one["kind"]: one for one in Api().get(f"models/{judged.model.full_name}/promises").json()}
    assert found["ttft"]["promised_by"] == "platform" and found["valid"]["promised_by"] == "creator"
    assert found["ttft"]["bound"] == found["ttft"]["next_bound"] == 2_000
    assert found["ttft"]["months"] == [
        {"month": f"{MONTH}", "bound": 2_000, "calls": 11, "value": 2_500, "kept": False}
    ]


def test_the_consumer_sees_the_refund_and_nobody_elses(judged: Market) -> None:
    page = _signed_in("buyer@example.com").get("/dashboard/usage?days=90").content.decode()
    assert "Refunds of broken promises" in page and "11 of 11" in page
    (refund,) = Api.of(judged.buyers[0]).get("promise-refunds").json()["results"]
    assert (refund["kind"], refund["missed"], refund["refund_bps"]) == ("ttft", 11, 10_000)
    assert refund["paid_nano_usd"] == 11 * 90  # the whole fee
    for other in (judged.seller, make_organization()):
        assert Api.of(other).get("promise-refunds").json()["results"] == []
        assert Api.of(other).get("promise-refunds?side=borne").json()["results"] == []


def test_a_creator_promises_valid_answers_and_only_staff_a_time(market: Market) -> None:
    path = f"models/{market.model.full_name}/promises"
    api = Api.of(market.seller)
    answer = api.call("POST", path, {"kind": "valid", "bound": 9_500})
    assert answer.status_code == 201 and answer.json()[0]["next_bound"] == 9_500 and answer.json()[0]["bound"] is None
    refused = api.call("POST", path, {"kind": "ttft", "bound": 2_000})
    assert error_of(refused, 403)["code"] == "staff_only"
    assert list(Promise.objects.values_list("kind", flat=True)) == ["valid"]


def test_staff_promise_a_time_of_anybodys_model(market: Market) -> None:
    platform = make_organization("intarsia", make_user("staff@example.com", is_staff=True))
    api = Api(make_key(platform)[1])
    answer = api.call("POST", f"models/{market.model.full_name}/promises", {"kind": "ttft", "bound": 1_500})
    assert answer.status_code == 201, answer.json()
    assert Promise.objects.get().bound == 1_500


def test_a_creator_promises_on_the_models_page(market: Market) -> None:
    owner = market.seller.memberships.get().user
    client = Client()
    client.force_login(owner)
    path = f"/dashboard/models/{market.model.slug}"
    assert "Promise valid answers" in client.get(path).content.decode()
    page = client.post(f"{path}/promise", {"percent": "97.5"}, follow=True).content.decode()
    assert "97.5 % of valid answers are promised" in page and Promise.objects.get().bound == 9_750
    client.post(f"{path}/promise", {"percent": "100"})
    assert Promise.objects.count() == 1
    stranger = Client()
    stranger.force_login(make_organization().memberships.get().user)
    assert stranger.post(f"{path}/promise", {"percent": "60"}).status_code == 404 and Promise.objects.count() == 1
