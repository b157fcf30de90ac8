"""Hours of the fleet on a plan's curve: what a replica was asked, and what receipts say of the wait."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from billing.rollups.services import roll_up as count_usage
from marketplace.catalog.models import Version
from marketplace.planning.measured import LEAST_CALLS, measured_hours
from marketplace.vault.models import Replica
from marketplace.watch import rollup
from marketplace.watch.demand import DemandTally
from tests.marketplace.vault.factories import make_replica
from tests.marketplace.watch.calls import HOUR, book, buyers, hours_ago, sold_version, usage

pytestmark = pytest.mark.django_db(transaction=True)


def busy_hour(version: Version, hours: int, *, calls: int, slow: int = 0) -> None:
    """Calls of one hour, of which `slow` waited for two seconds and the others for 30 ms."""
    (buyer,) = buyers(1)
    at = hours_ago(hours) + timedelta(minutes=7)
    book(usage(version, buyer, at, ttft_ms=2_000 if place < slow else 30) for place in range(calls))


def replica_of(version: Version, *, since: int, until: int | None = None, role: str = "both") -> None:
    """A replica that lived from so many hours ago on, to the start of another hour."""
    row = make_replica(uuid.uuid4().hex).replica
    Replica.objects.filter(pk=row.pk).update(
        base_fingerprint=version.model.base_model.fingerprint,
        registered_at=hours_ago(since),
        gone_at=None if until is None else hours_ago(until),
        role=role,
    )


def test_an_hour_is_what_one_replica_was_asked_and_how_long_its_callers_waited() -> None:
    version = sold_version()
    busy_hour(version, 3, calls=40, slow=3)
    busy_hour(version, 2, calls=40, slow=1)
    busy_hour(version, 1, calls=LEAST_CALLS - 1)
    replica_of(version, since=4)
    replica_of(version, since=3, until=2)  # two replicas lived three hours ago
    replica_of(version, since=4, role="prefill")  # answers nobody
    count_usage()
    rollup.roll_up()
    tally = DemandTally()
    tally.refused(version.pk, hours_ago(2), "standard", "no_replica", 32)
    tally.write()
    base = version.model.base_model.fingerprint
    hours = measured_hours([base])[base]
    assert [(one.hour, one.ttft) for one in hours] == [
        (hours_ago(3), 2.0),  # 3 of 40 are more than one in twenty
        (hours_ago(2), 0.03),
    ]
    # Two replicas share the first hour; the second one's refused calls were asked for, too.
    assert [one.each for one in hours] == pytest.approx([40 / 3600 / 2, 72 / 3600])


def test_hours_without_a_replica_of_yesterday_or_of_another_base_are_no_points() -> None:
    version = sold_version()
    busy_hour(version, 2, calls=40)
    busy_hour(version, 30, calls=40)
    count_usage()
    rollup.roll_up()
    base = version.model.base_model.fingerprint
    assert measured_hours([base]) == {}, "no replica is known to have lived then"
    replica_of(version, since=40)
    assert [one.hour for one in measured_hours([base])[base]] == [hours_ago(2)]
    assert measured_hours(["0" * 64]) == {} == measured_hours([base], timezone.now() + 48 * HOUR)
