"""The staff's page of features, the operations, and what people read where a feature is off."""

from __future__ import annotations

import pytest

from marketplace.accounts.models import FeatureSwitch, Organization, User
from marketplace.operations.features import feature, switch_feature
from tests.marketplace.web.conftest import World
from tests.marketplace.web.sessions import stale
from tests.marketplace.web.test_access import assert_clean

PAGE = "/platform/features"


def test_staff_switch_features_on_the_page_after_proving_themselves(world: World) -> None:
    Organization.objects.create(slug="intarsia", name="Intarsia")
    client = world.client(world.staff)
    assert_clean(client.get(PAGE))
    typed = {"batches-percent": "25", "batches-on_for": "northbank, ledgerline", "batches-off_for": ""}
    assert "/accounts/reauthenticate/" in stale(world.client(world.staff)).post(f"{PAGE}/batches", typed)["Location"]
    assert feature("batches").state == "on"
    assert client.post(f"{PAGE}/batches", typed).status_code == 302
    assert (feature("batches").percent, feature("batches").on_for) == (25, ("ledgerline", "northbank"))
    refused = client.post(f"{PAGE}/batches", typed | {"batches-on_for": "nobody-here"})
    assert refused.status_code == 400 and refused.context["features"][1][1].errors["on_for"]
    assert client.post(f"{PAGE}/teleports", {"teleports-percent": "1"}).status_code == 404
    assert feature("batches").percent == 25


@pytest.mark.parametrize(
    ("name", "path", "form"),
    [("top-ups", "/dashboard/wallet", {"amount": "25"}), ("batches", "/dashboard/batches", None)],
)
def test_a_page_says_that_its_feature_is_off_and_refuses(
    world: World, name: str, path: str, form: dict[str, str] | None
) -> None:
    told = feature(name).feature.refusal
    client = world.client(world.consumer)
    assert client.get(path).content.decode().count(told) == 0
    switch_feature(name=name, percent=0, by=world.staff)
    page = client.get(path)
    assert_clean(page)
    assert page.content.decode().count(told) == 1
    if form is not None:
        refused = client.post(path, form)
        assert refused.status_code == 503 and refused.content.decode().count(told) == 2


def test_no_account_is_made_while_sign_ups_are_off(world: World) -> None:
    people = User.objects.count()
    FeatureSwitch.objects.create(name="sign-ups", percent=0)
    client = world.client(None)
    wanted = {"email": "new@example.com", "password1": "a long enough one 7", "password2": "a long enough one 7"}
    for answer in (client.get("/accounts/signup/"), client.post("/accounts/signup/", wanted)):
        assert answer.templates[0].name == "account/signup_closed.html"
    assert User.objects.count() == people
