"""The API of webhooks does what their page does: create, change, rotate, test, list deliveries, replay, delete."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from marketplace.accounts.models import AuditEntry
from marketplace.alerts.models import Delivery
from tests.marketplace.api.client import Api, error_of
from tests.marketplace.catalog.factories import make_organization

pytestmark = pytest.mark.django_db


def test_a_webhook_lives_through_the_api() -> None:
    api = Api.of(make_organization("acme"), "account")
    asked = ["batch.completed", "key.revoked"]
    made = api.post("webhooks", {"url": "https://hooks.example/x", "events": asked}).json()
    path = f"webhooks/{made['id']}"
    assert made["events"] == asked and api.get(path).json() == made
    error_of(api.post("webhooks", {"url": "https://hooks.example/y", "events": ["batch.*"]}), 400)
    changed = api.call("PATCH", path, {"events": ["alert.*"], "enabled": False}).json()
    assert changed["events"] == ["alert.*"] and changed["disabled_at"]
    assert error_of(api.post(f"{path}/test"), 409)["code"] == "webhook_disabled"
    assert api.call("PATCH", path, {"enabled": True}).json()["disabled_at"] is None
    rotated = api.post(f"{path}/rotate-secret").json()
    assert rotated["secret"] != made["secret"] and rotated["previous_secret_until"]
    test = api.post(f"{path}/test")
    assert test.status_code == 201 and json.loads(test.json()["body"])["type"] == "webhook.test"
    delivery = f"webhook-deliveries/{test.json()['id']}"
    assert error_of(api.post(f"{delivery}/replay"), 409)["code"] == "delivery_waiting"
    Delivery.objects.update(next_attempt_at=None, delivered_at=timezone.now(), status=200, attempts=1)
    replayed = api.post(f"{delivery}/replay").json()
    assert replayed["is_replay"] and replayed["webhook_message_id"] == test.json()["webhook_message_id"]
    listed = api.get(f"webhook-deliveries?webhook={made['id']}&limit=1").json()
    assert [one["id"] for one in listed["results"]] == [replayed["id"]] and "cursor=" in listed["next"]
    assert api.get(delivery).json()["status"] == 200
    assert api.call("DELETE", path).status_code == 204
    assert api.get("webhook-deliveries").json()["results"] == []
    acts = AuditEntry.objects.order_by("-id").values_list("act", flat=True)
    assert list(acts[:4]) == ["webhook.deleted", "webhook.replayed", "webhook.tested", "webhook.secret_rotated"]
