"""Alarms of a version: told once when they fire and once when they clear, from blocks alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.core import mail

from marketplace.accounts.errors import InvalidInput
from marketplace.alerts.models import Alert
from marketplace.alerts.tasks import send_alerts
from marketplace.watch.models import Alarm, Baseline, Threshold, Window
from marketplace.watch.services import set_thresholds
from tests.marketplace.watch.calls import book, buyers, calls, hours_ago, sold_version, usage, watch

pytestmark = pytest.mark.django_db


def told() -> list[tuple[str, str]]:
    return [(alert.kind, alert.data["event"]) for alert in Alert.objects.order_by("id")]


def test_two_bad_hours_tell_the_creator_once_and_a_good_one_ends_it() -> None:
    version, who = sold_version(), buyers(3)
    for hour, reason in ((9, "stop"), (8, "length"), (7, "stop"), (6, "length"), (5, "length"), (4, "length")):
        calls(version, who, hours_ago(hour), 8, finish_reason=reason)
    watch()
    assert told() == [("model.valid", "fired")]
    calls(version, who, hours_ago(3), 8)
    watch()
    watch()
    assert told() == [("model.valid", "fired"), ("model.valid", "cleared")]
    alert = Alert.objects.order_by("id")[0]
    assert alert.organization == version.model.organization
    assert alert.subject == "acme/triage@1: Whole answers below 90 % of calls"
    assert alert.data["value"] == 0 and alert.data["threshold"] == 90
    assert send_alerts() == 2 and mail.outbox[0].subject == alert.subject


def test_a_creators_thresholds_hold_and_an_alarm_that_is_off_tells_nothing() -> None:
    version, who = sold_version(), buyers(3)
    set_thresholds(model=version.model, values={"valid": None, "latency": 200.0, "spend": 0.00001})
    for hour in (4, 3):
        calls(version, who, hours_ago(hour), 8, finish_reason="length", duration_ms=900)
    watch()
    assert sorted(told()) == [("model.latency", "fired"), ("model.spend", "fired")]
    assert not Alarm.objects.filter(metric="valid").exists()


@pytest.mark.parametrize("values", [{"errors": 0.0}, {"errors": 101.0}, {"valid": float("nan")}, {"shape": 1.0}])
def test_a_threshold_that_is_none_is_refused_and_changes_nothing(values: dict[str, Any]) -> None:
    version = sold_version()
    with pytest.raises(InvalidInput):
        set_thresholds(model=version.model, values={"drift": 0.5, **values})
    assert not Threshold.objects.exists()


def test_a_shifted_stream_of_five_hundred_calls_is_told_and_the_unshifted_one_before_is_not() -> None:
    version, who = sold_version(), buyers(4)
    rng = random.Random(7)

    def hour(ago: int, weights: tuple[int, ...]) -> None:
        book(
            usage(version, rng.choice(who), hours_ago(ago), answer=answer, prompt_tokens=rng.randint(40, 60))
            for answer in rng.choices(range(3), weights, k=100)
        )

    for ago in range(40, 10, -1):
        hour(ago, (6, 3, 1))
    watch()
    assert Baseline.objects.get().calls == 1_000 and Window.objects.count() == 10 and told() == []
    for ago in range(10, 5, -1):
        hour(ago, (1, 3, 6))
    watch()
    assert told() == [("model.drift", "fired")]
    assert all(window.psi < 0.1 for window in Window.objects.order_by("end")[:10])
    assert all(window.answers_psi > 0.25 for window in Window.objects.order_by("end")[10:])
    assert all(window.prompt_psi < 0.1 for window in Window.objects.all()), "lengths stayed as they were"


def test_answers_that_are_no_closed_set_have_no_drift_of_their_own() -> None:
    version, who = sold_version(contract=None), buyers(4)
    for ago in range(8, 1, -1):
        calls(version, who, hours_ago(ago), 50)
    watch()
    assert [window.answers_psi for window in Window.objects.all()] == [None, None] and told() == []
