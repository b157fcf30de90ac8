"""Keys go to replicas of the reference, and of other checkpoints while the version is cleared or measured there."""

from __future__ import annotations

import pytest
from django.utils import timezone

from marketplace.catalog.models import BaseModel, Clearance
from marketplace.vault import clearance, services, sessions
from marketplace.vault.errors import NotCleared, WrongBase
from marketplace.vault.models import Lease, Release
from tests.marketplace.vault.factories import Booted, Sold, make_base, make_replica, make_sold, want

pytestmark = pytest.mark.django_db
SMALLER = "ef" * 32


@pytest.fixture
def checkpoint() -> BaseModel:
    fields = {"name": "tiny-int4", "config": {}, "context_length": 64, "is_reference": False}
    return BaseModel.objects.create(line=make_base().line, fingerprint=SMALLER, **fields)


@pytest.fixture
def booted(checkpoint: BaseModel) -> Booted:
    return make_replica("smaller", fingerprint=checkpoint.fingerprint)


def clear(sold: Sold, checkpoint: BaseModel, **fields: object) -> Clearance:
    return Clearance.objects.create(version=sold.version, checkpoint=checkpoint, **fields)


MEASURED = {"rows": 20, "correct": 20, "reference_correct": 20, "same_answers": 20}


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"state": "waiting"}, False),
        ({"state": "measuring"}, True),
        ({"state": "measuring", "leave": "refused"}, False),
        ({"state": "passed", **MEASURED}, True),
        ({"state": "passed", **MEASURED, "leave": "refused"}, False),
        ({"state": "failed"}, False),
        ({"state": "failed", "leave": "given"}, True),
        ({"state": "waiting", "leave": "given"}, True),
    ],
)
def test_a_key_is_lent_where_the_version_is_cleared_or_measured_and_stays_no_longer(
    booted: Booted, checkpoint: BaseModel, fields: dict[str, object], allowed: bool
) -> None:
    sold = make_sold()
    row = clear(sold, checkpoint, **fields)
    want(booted.replica, sold.digest)
    if not allowed:
        with pytest.raises(NotCleared):
            services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
        assert not Release.objects.exists() and not Lease.objects.exists()
        return
    sealed = services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert sessions.record_heartbeat(replica=booted.replica, stats={}).leases == []
    Clearance.objects.filter(pk=row.pk).update(state="failed", leave="")
    assert clearance.end_uncleared(version_id=sold.version.pk, fingerprint=SMALLER) == 1
    assert sessions.record_heartbeat(replica=booted.replica, stats={}).leases == [str(sealed.grant.release_id)]


def test_a_version_that_nobody_noted_and_one_of_another_line_are_for_another_base(booted: Booted) -> None:
    sold = make_sold()
    want(booted.replica, sold.digest)
    with pytest.raises(WrongBase):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")


def test_new_versions_are_verified_on_the_reference_alone(booted: Booted, checkpoint: BaseModel) -> None:
    sold = make_sold("verifying")
    clear(sold, checkpoint, leave="given")
    want(booted.replica, sold.digest)
    with pytest.raises(WrongBase):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="verify")


def test_a_replica_of_the_reference_needs_no_clearance() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    sealed = services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert clearance.end_uncleared(version_id=sold.version.pk, fingerprint=booted.replica.base_fingerprint) == 0
    ended = sessions.record_heartbeat(replica=booted.replica, stats={})
    assert ended.leases == [] and sealed.grant.release_id == Lease.objects.live(timezone.now()).get().pk
