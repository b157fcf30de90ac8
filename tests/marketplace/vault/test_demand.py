"""Demand and budgets: a replica is lent a key that somebody needs on it now, and so many of them an hour."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from billing.hotpath import HoldRequest
from billing.models import Incident
from billing.services import release_hold_sync
from marketplace.vault import demand, services
from marketplace.vault.errors import NoDemand, ReleaseBudgetSpent
from marketplace.vault.models import CreatorKey, EnrolledReplica, Lease, Release, ReleaseOrder
from tests.billing.support import hold_request, make_organization, place
from tests.marketplace.vault.factories import make_replica, make_sold, want

pytestmark = pytest.mark.django_db


def test_a_key_without_demand_is_refused_and_staff_are_told() -> None:
    sold, booted = make_sold(), make_replica()
    for _ in range(2):
        with pytest.raises(NoDemand):
            services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert not Release.objects.exists() and not Lease.objects.exists()
    incident = Incident.objects.get()  # one for both
    assert (incident.kind, incident.subject) == ("release_without_demand", "r1")
    assert incident.detail["digest"] == sold.digest


def predict(version_id: uuid.UUID, replica_id: uuid.UUID) -> HoldRequest:
    """Open a prediction of this version at this replica."""
    return place(
        hold_request(make_organization(10_000), make_organization(), version_id=version_id, replica_id=replica_id)
    )


def test_an_open_prediction_on_this_replica_is_demand() -> None:
    sold, booted, other = make_sold(), make_replica("r1"), make_replica("r2")
    predict(sold.version.pk, booted.replica.pk)
    assert services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    with pytest.raises(NoDemand):
        services.release_key(replica=other.replica, digest=sold.digest, purpose="serve")
    with pytest.raises(NoDemand):  # another package on the same replica
        services.release_key(replica=booted.replica, digest=make_sold().digest, purpose="serve")


def test_a_closed_prediction_is_no_demand() -> None:
    sold, booted = make_sold(), make_replica()
    prediction = predict(sold.version.pk, booted.replica.pk)
    assert release_hold_sync(prediction_id=prediction.prediction_id, reason="test")
    with pytest.raises(NoDemand):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")


def test_an_order_is_for_its_replica_package_purpose_and_time() -> None:
    sold, booted, other = make_sold("verifying"), make_replica("r1"), make_replica("r2")
    demand.order(replica_id=booted.replica.pk, digest=sold.digest, kind=ReleaseOrder.Kind.PREFETCH, seconds=60)
    with pytest.raises(NoDemand):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="verify")
    demand.order(replica_id=booted.replica.pk, digest=sold.digest, kind=ReleaseOrder.Kind.VERIFY, seconds=60)
    with pytest.raises(NoDemand):
        services.release_key(replica=other.replica, digest=sold.digest, purpose="verify")
    assert services.release_key(replica=booted.replica, digest=sold.digest, purpose="verify")
    ReleaseOrder.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(NoDemand):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="verify")


def test_keys_beyond_the_budget_are_refused_and_staff_are_told() -> None:
    packages, booted = [make_sold() for _ in range(3)], make_replica()
    EnrolledReplica.objects.update(releases_per_hour=2)
    for sold in packages:
        want(booted.replica, sold.digest)
    for sold in packages[:2]:
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    again = make_replica()  # a restart is no way out
    want(again.replica, packages[2].digest)
    with pytest.raises(ReleaseBudgetSpent):
        services.release_key(replica=again.replica, digest=packages[2].digest, purpose="serve")
    assert Release.objects.count() == 2
    assert Incident.objects.get().kind == "release_budget"


@pytest.mark.django_db(transaction=True)
def test_requests_at_once_cannot_exceed_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    packages, booted = [make_sold() for _ in range(6)], make_replica()
    EnrolledReplica.objects.update(releases_per_hour=2)
    for sold in packages:
        want(booted.replica, sold.digest)
    locked = services.lock_creator_key

    def slowly(creator_id: uuid.UUID) -> CreatorKey | None:
        time.sleep(0.2)  # counted, and not yet in the log: all the others have the time to count as well
        return locked(creator_id)

    monkeypatch.setattr(services, "lock_creator_key", slowly)

    def ask(digest: str) -> str:
        try:
            services.release_key(replica=booted.replica, digest=digest, purpose="serve")
        except ReleaseBudgetSpent:
            return "refused"
        finally:
            connection.close()
        return "lent"

    with ThreadPoolExecutor(len(packages)) as pool:
        answers = Counter(pool.map(ask, [sold.digest for sold in packages]))
    assert answers == {"lent": 2, "refused": 4}
    assert Release.objects.count() == 2
