"""The page of a key: its limits are changed, it is rotated with an overlap, and a developer manages their own alone."""

from __future__ import annotations

from datetime import timedelta

from django.urls import reverse
from django.utils import timezone

from billing.models import BudgetNode, Webhook
from marketplace.accounts.models import ApiKey, AuditEntry, Membership
from marketplace.accounts.services import authenticate_api_key
from marketplace.alerts.models import Event
from tests.marketplace.web.conftest import World

KEYS = "/dashboard/keys"


def page_of(key: ApiKey) -> str:
    return reverse("web:key", kwargs={"key_id": key.pk})


def test_limits_are_set_on_the_page_and_shown(world: World) -> None:
    client, page = world.client(world.consumer), page_of(world.key)
    limits = {"name": "robot", "networks": "203.0.113.0/24\n\n2001:db8::/32", "models": "ledgerline/transactions"}
    assert client.post(f"{page}/change", limits).status_code == 302
    world.key.refresh_from_db()
    assert (world.key.name, world.key.allowed_networks) == ("robot", ["203.0.113.0/24", "2001:db8::/32"])
    shown = client.get(page).content.decode()
    assert "203.0.113.0/24" in shown and "ledgerline/transactions" in shown and world.consumer.email in shown
    for field, value in (("networks", "10.0.0.1/8"), ("networks", "here"), ("models", "nothing"), ("name", "")):
        answer = client.post(f"{page}/change", limits | {field: value})
        assert answer.status_code == 400 and answer.context["form"].errors.keys() == {field}
    assert world.client(world.stranger).post(f"{page}/change", limits).status_code == 404
    entry = AuditEntry.objects.filter(act="key.changed").get()
    assert entry.user_id == world.consumer.pk and entry.data["allowed_networks"] == 2
    assert client.post(f"{page}/budget").status_code == 302 and BudgetNode.objects.filter(api_key=world.key).exists()


def test_a_key_is_rotated_with_the_overlap_that_was_chosen(world: World) -> None:
    client, page = world.client(world.consumer), page_of(world.key)
    assert client.post(f"{page}/rotate", {"overlap": "1"}).status_code == 400
    answer = client.post(f"{page}/rotate", {"overlap": "3600"})
    assert answer.status_code == 201 and "no-store" in answer.headers["Cache-Control"]
    new = authenticate_api_key(text=answer.context["text"])
    world.key.refresh_from_db()
    assert new.line_id == world.key.pk and answer.context["text"] in answer.content.decode()
    assert timedelta(minutes=59) < world.key.expires_at - timezone.now() <= timedelta(hours=1)
    assert client.post(f"{page_of(new)}/rotate", {"overlap": "0"}).status_code == 201
    new.refresh_from_db()
    assert new.expires_at <= timezone.now()


def test_a_developer_manages_the_keys_that_they_made_and_no_other(world: World) -> None:
    client = world.client(world.developer)
    made = {"name": "mine", "scopes": ["predict"], "days": "30", "models": "ledgerline/transactions"}
    assert client.post(KEYS, made | {"scopes": ["account"]}).status_code == 400
    assert client.post(KEYS, made).status_code == 201
    own = ApiKey.objects.get(name="mine")
    listed = client.get(KEYS).content.decode()
    assert own.prefix in listed and world.key.prefix not in listed
    assert client.get(page_of(own)).status_code == 200
    for path in (page_of(world.key), f"{page_of(world.key)}/revoke", f"{page_of(world.key)}/rotate"):
        answer = client.get(path) if path == page_of(world.key) else client.post(path, {"overlap": "0"})
        assert answer.status_code == 404
    Membership.objects.filter(user=world.developer).update(role="viewer")
    assert client.get(KEYS).status_code == client.post(f"{page_of(own)}/revoke").status_code == 403
    world.key.refresh_from_db()
    own.refresh_from_db()
    assert world.key.revoked_at is own.revoked_at is None


def test_a_revoked_key_is_told_once_to_a_webhook_that_asked(world: World) -> None:
    Webhook.objects.create(organization=world.buyer, url="https://hooks.example/x", events=["key.revoked"])
    client = world.client(world.consumer)
    for _ in range(2):
        client.post(f"{page_of(world.key)}/revoke")
    event = Event.objects.get()
    assert event.kind == "key.revoked" and event.data["key_id"] == str(world.key.pk)
    assert AuditEntry.objects.filter(act="key.revoked", user_id=world.consumer.pk).count() == 1
