"""The API of keys: networks and models, rotation with an overlap, and whose keys a caller manages."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from marketplace.accounts.models import ApiKey, AuditEntry, Membership
from marketplace.accounts.services import change_api_key
from marketplace.api.throttling import CallerThrottle
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_key, make_organization, make_user

pytestmark = pytest.mark.django_db
NETWORKS = ["203.0.113.0/24", "2001:db8::/32"]


def test_limits_of_a_key_are_set_changed_and_kept_by_its_rotations() -> None:
    api = Api.of(make_organization("acme"), "account")
    body = {"name": "a", "scopes": ["predict"], "networks": NETWORKS, "models": ["maker/thing"]}
    made = api.post("keys", body).json()
    assert (made["networks"], made["models"]) == (NETWORKS, ["maker/thing"])
    rotated = api.post(f"keys/{made['id']}/rotate", {"overlap_seconds": 3600}).json()
    assert (rotated["networks"], rotated["models"]) == (NETWORKS, ["maker/thing"])
    ends = datetime.fromisoformat(api.get(f"keys/{made['id']}").json()["expires_at"])
    assert timedelta(minutes=59) < ends - timezone.now() <= timedelta(hours=1)
    error_of(api.post(f"keys/{made['id']}/rotate", {"overlap_seconds": 604_801}), 400)
    changed = api.call("PATCH", f"keys/{rotated['id']}", {"name": "b", "networks": [], "models": ["maker/other"]})
    assert changed.status_code == 200
    for key in ApiKey.objects.filter(pk__in=(made["id"], rotated["id"])):
        assert (key.name, key.allowed_networks, key.allowed_models) == ("b", [], ["maker/other"])
    assert api.call("DELETE", f"keys/{rotated['id']}").status_code == 204
    acts = AuditEntry.objects.exclude(api_key_id=None).order_by("id").values_list("act", flat=True)
    assert list(acts) == ["key.created", "key.rotated", "key.changed", "key.revoked"]


@pytest.mark.parametrize(
    "change",
    [
        {"networks": ["10.0.0.1/8"]},
        {"networks": ["::ffff:10.0.0.0/104"]},
        {"networks": ["fe80::1%eth0/64"]},
        {"networks": [f"10.0.{at}.0/24" for at in range(21)]},
        {"models": ["maker/thing@1"]},
        {"models": ["thing"]},
        {"models": [f"maker/m{at}" for at in range(51)]},
        {"name": " "},
    ],
)
def test_a_limit_that_means_nothing_is_refused(change: dict[str, object]) -> None:
    organization = make_organization("acme")
    key, _ = make_key(organization)
    error_of(Api.of(organization, "account").call("PATCH", f"keys/{key.pk}", change), 400)
    key.refresh_from_db()
    assert (key.allowed_networks, key.allowed_models) == ([], [])


def test_a_key_is_refused_from_elsewhere() -> None:
    organization = make_organization("acme")
    key, text = make_key(organization, "account")
    change_api_key(key=key, networks=NETWORKS)
    assert error_of(Api(text).get("keys"), 403)["code"] == "address_not_allowed"
    key.refresh_from_db()
    assert key.last_used_at is None
    for address in ("203.0.113.9", "2001:db8::7", "::ffff:203.0.113.9"):
        answer = Client(REMOTE_ADDR=address).get("/api/v1/keys", headers={"Authorization": f"Bearer {text}"})
        assert answer.status_code == 200, address


def test_a_developer_manages_their_own_keys_and_a_key_of_theirs_makes_no_other() -> None:
    organization = make_organization("acme", owner=make_user("owner@example.com"))
    other, _ = make_key(organization)
    developer = make_user("dev@example.com")
    Membership.objects.create(organization=organization, user=developer, role="developer")
    client = Client()
    client.force_login(developer)
    made = client.post("/api/v1/keys", {"name": "own", "scopes": ["predict"]}, content_type="application/json")
    assert made.status_code == 201
    assert [key["name"] for key in client.get("/api/v1/keys").json()["results"]] == ["own"]
    assert client.get(f"/api/v1/keys/{other.pk}").status_code == 404
    assert client.delete(f"/api/v1/keys/{other.pk}").status_code == 404
    api = Api(made.json()["key"])
    assert error_of(api.post("keys", {"name": "more", "scopes": ["predict"]}), 403)["code"] == "scope_missing"
    assert error_of(api.call("PATCH", f"keys/{made.json()['id']}", {"networks": []}), 403)["code"] == "scope_missing"
    assert client.delete(f"/api/v1/keys/{made.json()['id']}").status_code == 204


def test_answers_say_what_is_left_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CallerThrottle, "limit", 2)
    api, other = Api.of(make_organization("acme"), "account"), Api.of(make_organization("beta"), "account")
    first, second, third = (api.get("keys") for _ in range(3))
    assert [one["RateLimit-Remaining"] for one in (first, second, third)] == ["1", "0", "0"]
    assert {one["RateLimit-Limit"] for one in (first, second, third)} == {"2"}
    assert 1 <= int(first["RateLimit-Reset"]) <= 60
    assert error_of(third, 429)["code"] == "rate_limited" and 1 <= int(third["Retry-After"]) <= 60
    assert other.get("keys").status_code == 200
