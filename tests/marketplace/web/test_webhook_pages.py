"""The pages of webhooks: added, tested, replayed, rotated, disabled and removed by the organization's own members."""

from __future__ import annotations

from django.urls import reverse
from django.utils import timezone

from billing.budgets.webhooks import secret_of
from billing.models import Webhook
from marketplace.alerts.models import Delivery
from tests.marketplace.web.conftest import World

WEBHOOKS = "/dashboard/webhooks"
NEW = {"url": "https://hooks.example/x", "events": ["alert.*", "batch.completed"]}


def test_a_webhook_is_added_tested_replayed_and_removed(world: World) -> None:
    client, stranger = world.client(world.consumer), world.client(world.stranger)
    assert client.post(WEBHOOKS, NEW | {"url": "gopher://x"}).status_code == 400
    assert client.post(WEBHOOKS, NEW).status_code == 302
    webhook = Webhook.objects.get()
    page = f"{WEBHOOKS}/{webhook.pk}"
    assert webhook.events == NEW["events"] and webhook.url in client.get(WEBHOOKS).content.decode()
    secret = secret_of(webhook)
    assert secret in client.get(page).content.decode()
    assert client.post(f"{page}/test").status_code == 302
    delivery = Delivery.objects.get()
    replay = reverse("web:replay_delivery", kwargs={"delivery_id": delivery.pk})
    assert client.post(replay).status_code == 302 and Delivery.objects.count() == 1, "it is still on its way"
    Delivery.objects.update(next_attempt_at=None, delivered_at=timezone.now(), attempts=1, status=204)
    shown = client.get(page).content.decode()
    assert "webhook.test" in shown and "arrived" in shown and ">204<" in "".join(shown.split()) and replay in shown
    for path in (page, f"{page}/test", f"{page}/secret", f"{page}/state", f"{page}/delete", replay):
        assert stranger.post(path, NEW).status_code == 404, path
        assert world.client(world.developer).post(path, NEW).status_code == 403, path
    assert client.post(replay).status_code == 302
    assert sorted(Delivery.objects.values_list("is_replay", flat=True)) == [False, True]
    client.post(f"{page}/secret")
    webhook.refresh_from_db()
    assert secret_of(webhook) != secret and "signed with the secret before" in client.get(page).content.decode()
    client.post(f"{page}/state", {"enabled": "0"})
    webhook.refresh_from_db()
    assert webhook.disabled_at is not None and client.post(f"{page}/test").status_code == 302
    assert Delivery.objects.count() == 2, "a disabled webhook gets nothing"
    client.post(f"{page}/state", {"enabled": "1"})
    client.post(page, {"url": "https://hooks.example/y", "events": ["key.revoked"]})
    webhook.refresh_from_db()
    assert (webhook.disabled_at, webhook.url, webhook.events) == (None, "https://hooks.example/y", ["key.revoked"])
    assert client.post(f"{page}/delete").status_code == 302 and not Webhook.objects.exists()
