"""Writes of webhooks: their addresses, the events that they ask for, their secrets, a test, and a replay."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.budgets.addresses import check_url
from billing.models import Webhook
from marketplace.accounts import audit
from marketplace.accounts.audit import PLATFORM, Actor
from marketplace.accounts.errors import Conflict, InvalidInput, Refusal
from marketplace.accounts.locks import lock_organization
from marketplace.accounts.models import Organization
from marketplace.alerts.events import ALERTS, NAMES, TEST
from marketplace.alerts.models import Delivery, Event

MAX_WEBHOOKS = 5  # of one organization
SECRET_OVERLAP = timedelta(hours=24)
MAX_TESTS = 20  # of one organization within an hour
MAX_REPLAYS = 100


@transaction.atomic
def create_webhook(
    *, organization: Organization, url: str, events: Collection[str] = (ALERTS,), actor: Actor = PLATFORM
) -> Webhook:
    """Post the organization's events to this address too. Raises InvalidInput, Conflict."""
    check_url(url)
    wanted = _checked_events(events)
    lock_organization(organization.pk)
    if Webhook.objects.filter(organization=organization).count() >= MAX_WEBHOOKS:
        raise Conflict(f"an organization may have {MAX_WEBHOOKS} webhooks", code="too_many_webhooks")
    webhook = Webhook(organization=organization, url=url, events=wanted)
    _save(webhook)
    _record(webhook, actor, "webhook.created")
    return webhook


@transaction.atomic
def change_webhook(
    *,
    webhook: Webhook,
    url: str | None = None,
    events: Collection[str] | None = None,
    enabled: bool | None = None,
    actor: Actor = PLATFORM,
) -> Webhook:
    """Change what is given. Enabling forgets that it failed; what was given up meanwhile can be replayed.

    Raises InvalidInput.
    """
    lock_organization(webhook.organization_id)
    webhook.refresh_from_db()
    if url is not None:
        webhook.url = check_url(url)
    if events is not None:
        webhook.events = _checked_events(events)
    if enabled and webhook.disabled_at is not None:
        webhook.disabled_at = webhook.failing_since = None
    if enabled is False and webhook.disabled_at is None:
        webhook.disabled_at = timezone.now()
    _save(webhook)
    _record(webhook, actor, "webhook.changed")
    return webhook


@transaction.atomic
def rotate_secret(*, webhook: Webhook, actor: Actor = PLATFORM) -> Webhook:
    """Sign with a new secret from now on, and for 24 hours more with the one before as well."""
    lock_organization(webhook.organization_id)
    webhook.refresh_from_db()
    webhook.secret_version += 1
    webhook.previous_secret_until = timezone.now() + SECRET_OVERLAP
    webhook.save(update_fields=["secret_version", "previous_secret_until"])
    _record(webhook, actor, "webhook.secret_rotated")
    return webhook


@transaction.atomic
def delete_webhook(*, organization: Organization, webhook_id: UUID, actor: Actor = PLATFORM) -> bool:
    """Post nothing more to this address, and forget what was posted. False: it is not the organization's."""
    webhook = Webhook.objects.filter(organization=organization, pk=webhook_id).first()
    if webhook is None:
        return False
    _record(webhook, actor, "webhook.deleted")
    webhook.delete()
    return True


@transaction.atomic
def send_test(*, webhook: Webhook, actor: Actor = PLATFORM) -> Delivery:
    """Post a test event to this webhook alone, whatever it asks for. Raises Conflict, Refusal 429 past the limit."""
    organization = lock_organization(webhook.organization_id)
    _require_enabled(webhook)
    tests = _within_an_hour(organization, event__kind=TEST, is_replay=False)
    if tests >= MAX_TESTS:
        raise _too_many("too_many_tests", f"an organization sends at most {MAX_TESTS} test events an hour")
    event = Event.objects.create(organization=organization, kind=TEST, data={"webhook_id": str(webhook.pk)})
    _record(webhook, actor, "webhook.tested")
    return _new_delivery(webhook=webhook, event=event)


@transaction.atomic
def replay_delivery(*, delivery: Delivery, actor: Actor = PLATFORM) -> Delivery:
    """Post what a delivery carried once more, as a delivery of its own; its `webhook-id` is that of the first.

    Raises Conflict while it is still on its way or its webhook is disabled, and Refusal 429 past the limit.
    """
    webhook = delivery.webhook
    assert webhook is not None, "an e-mail is not replayed"
    organization = lock_organization(webhook.organization_id)
    _require_enabled(webhook)
    if delivery.next_attempt_at is not None:
        raise Conflict("this delivery is still on its way", code="delivery_waiting")
    if _within_an_hour(organization, is_replay=True) >= MAX_REPLAYS:
        raise _too_many("too_many_replays", f"an organization replays at most {MAX_REPLAYS} deliveries an hour")
    _record(webhook, actor, "webhook.replayed")
    return _new_delivery(webhook=webhook, alert=delivery.alert, event=delivery.event, is_replay=True)


def _new_delivery(**fields: object) -> Delivery:
    made = Delivery.objects.create(**fields)
    return Delivery.objects.select_related("webhook", "alert", "event").get(pk=made.pk)  # with the database's times


def _within_an_hour(organization: Organization, **which: object) -> int:
    since = timezone.now() - timedelta(hours=1)
    return Delivery.objects.filter(webhook__organization=organization, created_at__gt=since, **which).count()


def _require_enabled(webhook: Webhook) -> None:
    webhook.refresh_from_db()
    if webhook.disabled_at is not None:
        raise Conflict("this webhook is disabled; enable it first", code="webhook_disabled")


def _checked_events(events: Collection[str]) -> list[str]:
    if not events or not set(events) <= NAMES:
        raise InvalidInput(f"must name at least one of {', '.join(sorted(NAMES))}", field="events")
    return sorted(set(events))


def _save(webhook: Webhook) -> None:
    try:
        with transaction.atomic():
            webhook.save()
    except IntegrityError:
        raise InvalidInput("is a webhook already", field="url") from None


def _record(webhook: Webhook, actor: Actor, act: str) -> None:
    """Note an act under the webhook's id: its address may name a person, and the audit log outlives an erasure."""
    audit.record(organization=webhook.organization, actor=actor, act=act, subject=str(webhook.pk))


def _too_many(code: str, message: str) -> Refusal:
    return Refusal(message, code=code, status=429, headers={"retry-after": "600"})
