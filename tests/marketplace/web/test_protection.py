"""The page of a model's protection, its clicks, and how a customer asks for more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core import mail
from django.utils import timezone

from billing.models import UsageDay
from marketplace.alerts.models import Alert
from marketplace.protection.models import Customer, Protection
from marketplace.protection.policies import pseudonym
from marketplace.protection.services import set_protection
from marketplace.protection.tasks import tell_creators, trust_customers
from tests.database import as_owner
from tests.marketplace.web.conftest import World

PAGE, MODEL = "/dashboard/models/transactions/protection", "/models/ledgerline/transactions"
MORE = f"{MODEL}/more-calls"


def text(world: World, path: str, user: object = None) -> str:
    return " ".join(world.client(user).get(path).content.decode().split())  # type: ignore[arg-type]


@pytest.fixture
def protected(world: World) -> World:
    set_protection(model=world.model, logprobs_open=False, calls_per_day=200, on_copying="stop")
    return world


@pytest.fixture
def noticed(protected: World) -> Customer:
    return Customer.objects.create(
        model=protected.model,
        organization=protected.buyer,
        noticed_at=timezone.now(),
        noticed_distinct=353,
        noticed_calls=360,
        evenness_permille=981,
    )


def test_the_rules_are_saved_and_bad_ones_change_nothing(world: World) -> None:
    client = world.client(world.creator)
    assert "Messages are not counted" in text(world, PAGE, world.creator)
    form = {"on_copying": "slow", "calls_per_day": "200", "logprobs_open": "on"}
    assert client.post(PAGE, form, follow=True).status_code == 200
    row = Protection.objects.get()
    assert (row.on_copying, row.calls_per_day, row.logprobs_open) == ("slow", 200, True)
    for wrong in ({"on_copying": "shoot"}, {"calls_per_day": "0"}, {"calls_per_day": "1000001"}):
        assert client.post(PAGE, {**form, **wrong}).status_code == 400
    assert Protection.objects.get() == row and Protection.objects.get().calls_per_day == 200


def test_another_organization_sees_and_changes_nothing(protected: World, noticed: Customer) -> None:
    for user in (protected.consumer, protected.stranger):
        client = protected.client(user)
        assert client.get(PAGE).status_code == 404
        assert client.post(PAGE, {"on_copying": ""}).status_code == 404
        assert client.post(f"{PAGE}/{noticed.pk}/trust").status_code == 404
    noticed.refresh_from_db()
    assert noticed.trusted_at is None and Protection.objects.get().on_copying == "stop"
    creator = protected.client(protected.creator)
    assert creator.post(f"{PAGE}/{noticed.pk + 1}/trust").status_code == 404
    assert creator.post(f"{PAGE}/{noticed.pk}/erase").status_code == 404


def test_a_noticed_customer_is_shown_under_a_pseudonym_with_one_click_each(protected: World, noticed: Customer) -> None:
    name = pseudonym(model_id=protected.model.pk, organization_id=protected.buyer.pk)
    page = text(protected, PAGE, protected.creator)
    assert name in page and "353 different messages in 360 calls" in page and "98 %" in page and "stopped" in page
    assert protected.buyer.slug not in page and protected.buyer.name not in page
    client = protected.client(protected.creator)
    for click, expected in (("tell", "noticed"), ("slow", "slowed"), ("stop", "stopped"), ("trust", "trusted")):
        client.post(f"{PAGE}/{noticed.pk}/{click}")
        assert f">{expected}</span>" in text(protected, PAGE, protected.creator), click
    noticed.refresh_from_db()
    assert noticed.trusted_at is not None


def test_a_customer_asks_for_more_on_the_models_page_and_the_creator_grants_it(protected: World) -> None:
    consumer, creator = protected.client(protected.consumer), protected.client(protected.creator)
    assert "200 calls a day" in text(protected, MODEL, protected.consumer)
    assert "200 calls a day" not in text(protected, MODEL), "a stranger without an organization has no limit of its own"
    Customer.objects.create(model=protected.model, organization=protected.buyer)
    consumer.post(MORE, {"calls_per_day": "0"})
    assert Customer.objects.get().asked_at is None
    consumer.post(MORE, {"calls_per_day": "900"})
    assert "You have asked for 900 calls a day" in text(protected, MODEL, protected.consumer)
    assert tell_creators() == 1 == Alert.objects.count() and tell_creators() == 0
    alert = Alert.objects.get()
    assert alert.organization_id == protected.seller.pk and alert.kind == "model.more_calls"
    assert protected.buyer.slug not in alert.text + alert.subject and not mail.outbox
    assert "900 calls a day" in text(protected, PAGE, protected.creator)
    creator.post(f"{PAGE}/{Customer.objects.get().pk}/grant")
    row = Customer.objects.get()
    assert (row.granted_calls_per_day, row.asked_at) == (900, None)
    assert "900 calls a day" in text(protected, MODEL, protected.consumer)


def test_a_stopped_customer_appeals_and_a_grant_lifts_the_stop(protected: World, noticed: Customer) -> None:
    page = text(protected, MODEL, protected.consumer)
    assert "Your calls are stopped" in page
    protected.client(protected.consumer).post(MORE, {"calls_per_day": "500"})
    protected.client(protected.creator).post(f"{PAGE}/{noticed.pk}/grant")
    assert "Your calls are stopped" not in text(protected, MODEL, protected.consumer)


def test_a_customer_without_a_limit_has_nothing_to_ask_for(world: World) -> None:
    client = world.client(world.consumer)
    assert (
        "nothing limits your calls" in client.post(MORE, {"calls_per_day": "5"}, follow=True).content.decode().lower()
    )
    assert not Customer.objects.exists()


def test_the_creator_is_told_once_of_a_notice_and_what_was_done(protected: World, noticed: Customer) -> None:
    assert tell_creators() == 1 and tell_creators() == 0
    alert = Alert.objects.get()
    assert alert.kind == "model.copying" and "353 different messages" in alert.text
    assert "Its calls are refused" in alert.text and alert.data["measure"] == "stop"
    assert protected.buyer.slug not in alert.text + str(alert.data)


def test_who_paid_over_weeks_unnoticed_is_trusted_and_a_noticed_one_is_not(protected: World) -> None:
    old = timezone.now() - timedelta(days=40)
    row = Customer.objects.create(model=protected.model, organization=protected.buyer, first_seen_at=old)
    assert trust_customers() == 0, "too little is paid"
    with as_owner():
        for days, paid in ((30, 2), (20, 2), (10, 1)):
            UsageDay.objects.create(
                day=(timezone.now() - timedelta(days=days)).date(),
                organization_id=protected.buyer.pk,
                model_id=protected.model.pk,
                latency_class="standard",
                model_name="x",
                predictions=1,
                prompt_tokens=1,
                cached_tokens=0,
                completion_tokens=1,
                charged_nano_usd=paid * 10**9,
            )
    Customer.objects.update(noticed_at=timezone.now())
    assert trust_customers() == 0
    Customer.objects.update(noticed_at=None)
    assert trust_customers() == 1
    row.refresh_from_db()
    assert row.trusted_at is not None
