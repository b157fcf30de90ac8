"""The status page: what probes saw, what staff said, and which of the two is shown."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.operations.incidents import add_update, post_incident
from marketplace.operations.models import Probe, ProbeDay
from marketplace.operations.probes import ProbeFailed, probe_all
from marketplace.operations.status import DAYS, status
from tests.marketplace.catalog.factories import make_user

pytestmark = pytest.mark.django_db


def fails() -> None:
    raise ProbeFailed("/healthz answered 503")


def breaks() -> None:
    raise ConnectionError("a secret address")


def state_of(name: str) -> str:
    return next(one.state for one in status().components if one.name == name)


def test_two_bad_probes_in_a_row_are_an_outage_and_one_is_not() -> None:
    assert state_of("api") == "unknown" and status().words == "Not measured"
    assert probe_all({"api": lambda: None, "payments": breaks}) == {"api": True, "payments": False}
    assert state_of("api") == "working"
    assert Probe.objects.get(ok=False).error == "ConnectionError", "no address in what is kept"
    probe_all({"api": fails})
    assert state_of("api") == "degraded"
    probe_all({"api": fails})
    assert state_of("api") == "down" and status().state == "down"
    for _ in range(5):
        probe_all({"api": lambda: None})
    assert state_of("api") == "working"
    Probe.objects.all().delete()
    Probe.objects.create(component="api", ok=True, milliseconds=1, at=timezone.now() - timedelta(minutes=6))
    assert state_of("api") == "unknown"


def test_days_are_summed_and_rounded_down() -> None:
    today = timezone.now().date()
    ProbeDay.objects.create(component="api", day=today - timedelta(days=1), good=1439, bad=1)
    ProbeDay.objects.create(component="api", day=today - timedelta(days=DAYS), good=0, bad=9)
    probe_all({"api": lambda: None})
    api = next(one for one in status().components if one.name == "api")
    assert len(api.days) == DAYS and [day.percent for day in api.days[-3:]] == [None, 99.93, 100.0]
    assert [day.tone for day in api.days[-3:]] == ["none", "good", "good"] and api.percent == 99.93


def test_old_probes_are_forgotten_and_their_sums_stay() -> None:
    probe_all({"api": fails})
    Probe.objects.all().delete()
    Probe.objects.create(component="api", ok=False, milliseconds=1, at=timezone.now() - timedelta(days=3))
    probe_all({"api": lambda: None})
    assert Probe.objects.count() == 1 and ProbeDay.objects.get().bad == 1


def test_the_page_costs_a_few_queries(django_assert_max_num_queries) -> None:
    by = make_user(is_staff=True)
    for number in range(5):
        post_incident(by=by, kind="minor", title=f"Trouble {number}", components=["api"], text="We see it.")
    with django_assert_max_num_queries(5):
        page = status()
        assert [len(one.updates.all()) for one in page.current] == [1] * 5


def test_staff_say_what_is_wrong_until_it_is_resolved() -> None:
    by = make_user(is_staff=True)
    probe_all({"api": lambda: None})
    incident = post_incident(by=by, kind="major", title="Down", components=["api"], text="We see it.")
    assert state_of("api") == "down"
    add_update(by=by, incident_id=incident.pk, state="resolved", text="It was a cable.")
    assert state_of("api") == "working" and [one.title for one in status().past] == ["Down"]
    with pytest.raises(Conflict):
        add_update(by=by, incident_id=incident.pk, state="watching", text="Again?")
    with pytest.raises(NotFound):
        add_update(by=by, incident_id=0, state="watching", text="x")


def test_planned_work_is_shown_before_it_begins_and_needs_an_end() -> None:
    by, soon = make_user(is_staff=True), timezone.now() + timedelta(hours=1)
    work = {"by": by, "kind": "maintenance", "title": "A database", "components": ["api"], "text": "An hour."}
    with pytest.raises(InvalidInput):
        post_incident(**work, starts_at=soon)
    post_incident(**work, starts_at=soon, ends_at=soon + timedelta(hours=1))
    assert [one.title for one in status().planned] == ["A database"] and state_of("api") == "unknown"
