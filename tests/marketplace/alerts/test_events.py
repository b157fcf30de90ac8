"""Events go to the webhooks that asked for them: stored once, retried for a day, replayed, forgotten after a month."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone

from billing.budgets.webhooks import Outcome
from billing.models import Outbox, Webhook
from marketplace.accounts.errors import Conflict, InvalidInput, Refusal
from marketplace.accounts.models import Membership, Organization, User
from marketplace.alerts import delivery, money, webhooks
from marketplace.alerts.events import NAMES, emit
from marketplace.alerts.models import Alert, Delivery, Event
from marketplace.alerts.tasks import forget_old_deliveries, send_alerts
from tests.billing.support import make_organization

pytestmark = pytest.mark.django_db
DONE = "batch.completed"


@pytest.fixture
def organization() -> Organization:
    made = make_organization()
    Membership.objects.create(organization=made, user=User.objects.create(email=f"{made.slug}@example.com"))
    return made


@pytest.fixture
def hook(organization: Organization) -> Webhook:
    return webhooks.create_webhook(organization=organization, url="https://a.example/x", events=[DONE, "top_up.failed"])


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Receive what is posted. An attribute of the list says with what: `answers.outcome`."""

    class Answers(list[dict[str, Any]]):
        outcome = Outcome(None, 204)

    seen = Answers()

    async def post(webhook: Webhook, **message: Any) -> Outcome:
        seen.append({"url": webhook.url, **message})
        return seen.outcome

    monkeypatch.setattr(delivery, "post", post)
    return seen


def test_an_event_reaches_the_webhooks_that_asked_for_it(organization: Organization, hook: Webhook, answers) -> None:
    webhooks.create_webhook(organization=organization, url="https://a.example/alerts")
    off = webhooks.create_webhook(organization=organization, url="https://a.example/off", events=[DONE])
    webhooks.change_webhook(webhook=off, enabled=False)
    emit(organization=organization, kind=DONE, data={"batch_id": "b1", "completed": 3})
    emit(organization=organization, kind="batch.failed", data={})
    emit(organization=make_organization(), kind=DONE, data={})
    (event,) = Event.objects.all()
    assert send_alerts() == 1 and send_alerts() == 0
    (posted,) = answers
    assert (posted["url"], posted["message_id"]) == (hook.url, f"event_{event.pk}")
    assert posted["message"]["type"] == DONE and posted["message"]["data"] == {"batch_id": "b1", "completed": 3}
    assert not mail.outbox and not Alert.objects.exists()
    row = Delivery.objects.get()
    assert (row.status, row.attempts, row.next_attempt_at, row.error) == (204, 1, None, "")


@pytest.mark.parametrize(("kind", "data"), [("batch.done", {}), ("alert.*", {}), (DONE, {"text": "x" * 20_000})])
def test_what_is_no_event_is_a_fault_of_whoever_emits_it(organization: Organization, kind: str, data: Any) -> None:
    with pytest.raises(ValueError):
        emit(organization=organization, kind=kind, data=data)
    assert not Event.objects.exists()


def test_attempts_go_on_for_a_day() -> None:
    pauses = [min(delivery.LAST_RETRY, delivery.FIRST_RETRY * 2**at) for at in range(delivery.MAX_ATTEMPTS - 1)]
    assert timedelta(hours=24) <= sum(pauses, timedelta()) < timedelta(hours=25)


def test_a_webhook_at_which_nothing_arrives_for_days_is_disabled_and_members_are_told(
    organization: Organization, hook: Webhook, answers
) -> None:
    answers.outcome = Outcome("the receiver answered 500", 500)
    emit(organization=organization, kind=DONE, data={})
    send_alerts()
    hook.refresh_from_db()
    assert hook.failing_since is not None and hook.disabled_at is None
    answers.outcome = Outcome(None, 200)
    Delivery.objects.update(next_attempt_at=timezone.now())
    send_alerts()
    hook.refresh_from_db()
    assert hook.failing_since is None, "one that arrives ends it"
    answers.outcome = Outcome("the receiver could not be reached")
    Webhook.objects.update(failing_since=timezone.now() - delivery.DISABLED_AFTER - timedelta(hours=1))
    emit(organization=organization, kind=DONE, data={})
    send_alerts()
    send_alerts()
    hook.refresh_from_db()
    assert hook.disabled_at is not None and [one.subject for one in mail.outbox] == [Alert.objects.get().subject]
    emit(organization=organization, kind=DONE, data={})
    assert Event.objects.count() == 2, "nothing is stored for a disabled webhook"
    webhooks.change_webhook(webhook=hook, enabled=True)
    assert hook.disabled_at is hook.failing_since is None


def test_a_replay_posts_the_same_message_under_the_same_id(organization: Organization, hook: Webhook, answers) -> None:
    emit(organization=organization, kind=DONE, data={"n": 1})
    first = Delivery.objects.get()
    with pytest.raises(Conflict, match="on its way"):
        webhooks.replay_delivery(delivery=first)
    send_alerts()
    first.refresh_from_db()
    again = webhooks.replay_delivery(delivery=first)
    assert again.is_replay and again.pk != first.pk and send_alerts() == 1
    assert answers[0] == answers[1]


def test_tests_and_replays_are_limited(organization: Organization, hook: Webhook, monkeypatch) -> None:
    monkeypatch.setattr(webhooks, "MAX_TESTS", 1)
    monkeypatch.setattr(webhooks, "MAX_REPLAYS", 1)
    test = webhooks.send_test(webhook=hook)
    Delivery.objects.update(next_attempt_at=None)
    test.refresh_from_db()
    webhooks.replay_delivery(delivery=test)
    for again in (lambda: webhooks.send_test(webhook=hook), lambda: webhooks.replay_delivery(delivery=test)):
        with pytest.raises(Refusal) as refused:
            again()
        assert refused.value.status == 429 and Delivery.objects.count() == 2


def test_billings_news_is_told_once_to_whoever_asked(organization: Organization, hook: Webhook) -> None:
    for topic, key in (("top_up.failed", "t1"), ("payout.paid", "p1")):
        payload = {"organization_id": str(organization.pk), "amount_nano_usd": 5}
        Outbox.objects.create(topic=topic, key=key, payload=payload)
    send_alerts()
    send_alerts()
    event = Event.objects.get()
    assert (event.kind, event.data) == ("top_up.failed", {"amount_nano_usd": 5})
    assert not Outbox.objects.filter(announced_at=None).exists()


def test_every_message_of_billing_has_an_event() -> None:
    assert set(money.KIND_OF) == set(Outbox.Topic) and set(money.KIND_OF.values()) <= NAMES


def test_events_and_deliveries_are_forgotten_after_a_month(organization: Organization, hook: Webhook) -> None:
    emit(organization=organization, kind=DONE, data={})
    emit(organization=organization, kind=DONE, data={})
    Delivery.objects.update(next_attempt_at=None)
    assert forget_old_deliveries() == 0
    old = Event.objects.order_by("pk")[0]
    past = timezone.now() - timedelta(days=31)
    Delivery.objects.filter(event=old).update(created_at=past)
    assert forget_old_deliveries() == 1 and Delivery.objects.count() == 1


def test_an_organization_has_few_webhooks_and_deletes_its_own_alone(organization: Organization) -> None:
    stranger = make_organization()
    made = [webhooks.create_webhook(organization=organization, url=f"https://a.example/{at}") for at in range(5)]
    with pytest.raises(Conflict):
        webhooks.create_webhook(organization=organization, url="https://a.example/more")
    with pytest.raises(InvalidInput):
        webhooks.create_webhook(organization=stranger, url="javascript:alert(1)")
    for events in ([], ["batch.*"]):
        with pytest.raises(InvalidInput):
            webhooks.create_webhook(organization=stranger, url="https://a.example/x", events=events)
    assert not webhooks.delete_webhook(organization=stranger, webhook_id=made[0].pk)
    assert webhooks.delete_webhook(organization=organization, webhook_id=made[0].pk)
    with pytest.raises(InvalidInput, match="already"):
        webhooks.create_webhook(organization=organization, url="https://a.example/1")
    assert Webhook.objects.filter(organization=organization).count() == 4


def test_an_organization_with_hundreds_of_deliveries_takes_few_places_of_a_round(
    organization: Organization, hook: Webhook, answers
) -> None:
    other = make_organization()
    webhooks.create_webhook(organization=other, url="https://b.example/events", events=[DONE])
    for _ in range(delivery.BATCH + 20):
        emit(organization=organization, kind=DONE, data={})
    emit(organization=other, kind=DONE, data={})  # the last of all
    assert send_alerts() == delivery.OF_ONE + 1
    assert [one["url"] for one in answers].count("https://b.example/events") == 1
    assert send_alerts() == delivery.OF_ONE, "the rest follows"


def test_posts_that_hang_keep_no_others_place(organization: Organization, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: Counter[Any] = Counter()
    most: Counter[Any] = Counter()

    async def post(webhook: Webhook, **message: Any) -> Outcome:
        at_once[webhook.organization_id] += 1
        most[webhook.organization_id] = max(most[webhook.organization_id], at_once[webhook.organization_id])
        await asyncio.sleep(0.01)
        at_once[webhook.organization_id] -= 1
        return Outcome(None, 204)

    monkeypatch.setattr(delivery, "post", post)
    webhooks.create_webhook(organization=organization, url="https://a.example/events", events=[DONE])
    for _ in range(delivery.OF_ONE):
        emit(organization=organization, kind=DONE, data={})
    assert send_alerts() == delivery.OF_ONE
    assert most == {organization.pk: delivery.POSTS.share}
