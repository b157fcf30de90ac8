"""Guard policies by the control API: set, read, kept by rotations, refused where they cannot hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytest_django.live_server_helper import LiveServer

from marketplace.accounts.models import ApiKey, Organization
from marketplace.catalog.models import Model
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_key, make_model, make_organization

pytestmark = pytest.mark.django_db
PAGE = Path(__file__).resolve().parents[3] / "docs" / "guards.md"
POLICY = {"email": "mask", "card": "refuse"}


@pytest.fixture
def acme() -> Organization:
    return make_organization("acme")


def test_a_key_is_created_with_a_policy_that_its_rotations_keep(acme: Organization) -> None:
    api = Api.of(acme)
    made = api.call("POST", "keys", {"name": "a", "scopes": ["predict"], "guards": POLICY}).json()
    assert made["guards"] == POLICY
    rotated = api.call("POST", f"keys/{made['id']}/rotate", {}).json()
    assert rotated["guards"] == POLICY
    changed = api.call("PUT", f"keys/{rotated['id']}/guards", {"guards": {"ip": "mask", "email": "pass"}})
    assert changed.json() == {"guards": {"ip": "mask"}, "counts": []}
    for key in (made, rotated):
        assert ApiKey.objects.get(pk=key["id"]).guards == {"ip": "mask"}, "a line of keys has one policy"
    assert ApiKey.objects.exclude(pk__in=[made["id"], rotated["id"]]).get().guards == {}


def test_a_models_policy_is_public(acme: Organization) -> None:
    model = make_model(acme)
    api, path = Api.of(acme), f"models/acme/{model.slug}"
    assert api.call("PUT", f"{path}/guards", {"guards": POLICY}).json()["guards"] == POLICY
    assert api.call("GET", f"{path}/guards").json() == {"guards": POLICY, "counts": []}
    assert api.call("GET", path).json()["guards"] == POLICY


@pytest.mark.parametrize(
    ("guards", "field"),
    [({"emial": "mask"}, "emial"), ({"email": "hide"}, "guards.email"), ("mask", "guards"), (None, "guards")],
)
def test_a_policy_that_cannot_hold_changes_nothing(acme: Organization, guards: object, field: str) -> None:
    model = make_model(acme)
    answer = Api.of(acme).call("PUT", f"models/acme/{model.slug}/guards", {"guards": guards})
    assert error_of(answer, 400)["field"] == field
    assert Model.objects.get().guards == {}


def test_masking_cannot_be_switched_on_without_the_package(acme: Organization, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marketplace.guards.policies._MODULE", "presidio_that_is_not_there")
    api = Api.of(acme)
    refused = api.call("POST", "keys", {"name": "a", "scopes": ["predict"], "guards": POLICY})
    assert "presidio-analyzer" in error_of(refused, 400)["message"]
    assert ApiKey.objects.count() == 1, "the caller's own"
    assert api.call("POST", "keys", {"name": "a", "scopes": ["predict"]}).status_code == 201


@pytest.mark.django_db(transaction=True)
def test_the_pages_example_runs(live_server: LiveServer) -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0]
    key, text = make_key(make_organization("acme"), "account")
    exec(compile(block, PAGE.name, "exec"), {"BASE_URL": live_server.url, "API_KEY": text})
    key.refresh_from_db()
    assert key.guards == {"card": "refuse", "email": "mask", "phone": "mask"}
