"""The vault's rules with a time or a number: each just below its bound, at it, and above."""

from __future__ import annotations

import hashlib
import secrets
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from billing.models import Incident
from marketplace.accounts.errors import NotAllowed
from marketplace.vault import absences, enrolment, services
from marketplace.vault.demand import require_budget
from marketplace.vault.errors import ReleaseBudgetSpent, SessionRefused
from marketplace.vault.models import EnrolledReplica, Release, Replica, ReplicaChallenge, SigningKey
from marketplace.vault.sessions import record_heartbeat
from sealed_weights import CreatorIdentity
from tests.database import as_superuser
from tests.marketplace.vault.factories import make_lease, make_replica, make_sold
from tests.marketplace.vault.registrar import Registrar, issue

pytestmark = pytest.mark.django_db


@contextmanager
def without_rules() -> Iterator[None]:
    """Change rows as nothing in the product could, with the triggers off."""
    with transaction.atomic(), as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield
        cursor.execute("SET LOCAL session_replication_role = origin")


def ago(seconds: float) -> object:
    return timezone.now() - timedelta(seconds=seconds)


@pytest.fixture
def enrolled(client: Client) -> Registrar:
    services.bootstrap_platform_keys()
    registrar = Registrar(client)
    assert registrar.enrol(issue()).status_code == 200
    return registrar


# -- registration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "good"), [(58, True), (61, False)])
def test_a_challenge_is_answered_within_a_minute(enrolled: Registrar, age: float, good: bool) -> None:
    message = enrolled.message()
    ReplicaChallenge.objects.update(created_at=ago(age))
    assert enrolled.register(message).status_code == (200 if good else 401)
    assert Replica.objects.count() == (1 if good else 0)
    assert enrolled.register(message).status_code == 401, "and once"


def test_sixteen_challenges_of_a_replica_are_open_and_those_of_others_stay(enrolled: Registrar, client: Client) -> None:
    other = Registrar(client, "r2")
    other.enrol(issue("r2"))
    kept, first, *rest = other.message(), *(enrolled.message() for _ in range(16))
    assert ReplicaChallenge.objects.filter(name="r1").count() == 16
    last = enrolled.message()  # the seventeenth
    assert ReplicaChallenge.objects.filter(name="r1").count() == 16
    assert enrolled.register(first).status_code == 401, "the oldest is forgotten"
    assert enrolled.register(rest[0]).status_code == enrolled.register(last).status_code == 200
    assert other.register(kept).status_code == 200


@pytest.mark.parametrize(("silent", "left", "taken"), [(3, False, False), (6, False, True), (3, True, True)])
def test_a_name_is_taken_from_a_boot_that_left_or_was_silent_for_five_seconds(
    enrolled: Registrar, client: Client, silent: float, left: bool, taken: bool
) -> None:
    assert enrolled.register().status_code == 200
    Replica.objects.update(last_seen_at=ago(silent), left_at=timezone.now() if left else None)
    neighbour = make_replica("r2").replica
    again = Registrar(client)
    again.identity = enrolled.identity  # another boot of the same machine
    assert again.register().status_code == (200 if taken else 409)
    assert Replica.objects.filter(name="r1", gone_at=None).count() == 1
    neighbour.refresh_from_db()
    assert neighbour.gone_at is None


# -- silence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "renewed"), [(28, True), (31, False)])
def test_a_session_that_was_silent_for_half_a_minute_does_not_rise_again(seconds: float, renewed: bool) -> None:
    booted, other = make_replica("r1").replica, make_replica("r2").replica
    lease = make_lease(make_sold().version, booted)
    for one, age in ((booted, seconds), (other, 1)):
        Replica.objects.filter(pk=one.pk).update(last_seen_at=ago(age))
        one.refresh_from_db()
    before = booted.last_seen_at
    if renewed:
        record_heartbeat(replica=booted, stats={})
    else:
        with pytest.raises(SessionRefused):
            record_heartbeat(replica=booted, stats={})
    booted.refresh_from_db()
    assert (booted.last_seen_at > before) is renewed
    lease.refresh_from_db()
    assert lease.revoked_at is None and lease.expires_at is None
    assert record_heartbeat(replica=other, stats={}).leases == []


@pytest.mark.parametrize(("seconds", "gone"), [(29, 0), (31, 1)])
def test_a_replica_is_gone_after_half_a_minute_of_silence(seconds: float, gone: int) -> None:
    silent, lively = make_replica("r1").replica, make_replica("r2").replica
    Replica.objects.filter(pk=silent.pk).update(last_seen_at=ago(seconds))
    assert enrolment.mark_silent_replicas() == gone
    assert list(Replica.objects.exclude(gone_at=None)) == [silent][:gone] and lively.gone_at is None


@pytest.mark.parametrize(
    ("state", "lost"),
    [
        ({"gone": 599}, 0),
        ({"gone": 601}, 1),
        ({"gone": 601, "retired": True}, 0),
        ({"gone": 601, "revoked": True}, 0),
        ({"gone": 601, "again": True}, 0),
        ({}, 0),
    ],
    ids=str,
)
def test_a_name_is_lost_ten_minutes_after_its_newest_boot_was_given_up_unless_it_left_or_was_revoked(
    state: dict[str, object], lost: int
) -> None:
    boot = make_replica("r1").replica
    make_replica("r2")
    if "gone" in state:
        retired = timezone.now() if "retired" in state else None
        Replica.objects.filter(pk=boot.pk).update(gone_at=ago(float(str(state["gone"]))), retired_at=retired)
    if "revoked" in state:
        EnrolledReplica.objects.filter(name="r1").update(revoked_at=timezone.now())
    if "again" in state:
        make_replica("r1")
    assert absences.mark_lost_names() == lost
    assert [one.subject for one in Incident.objects.filter(kind="replica_lost")] == ["r1"] * lost
    assert absences.mark_lost_names() == 0, "once"


# -- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "good"), [(3_590, False), (3_610, True)])
def test_a_budget_is_of_an_hour_and_of_one_replica_over_its_boots(age: float, good: bool) -> None:
    booted, other = make_replica("r1").replica, make_replica("r2").replica
    EnrolledReplica.objects.update(releases_per_hour=2)
    sold = make_sold()
    for _ in range(2):
        make_lease(sold.version, booted)
    with without_rules():
        Release.objects.update(released_at_us=time.time_ns() // 1000 - int(age * 1e6))
    for _ in range(2):
        make_lease(sold.version, other)
    again = make_replica("r1").replica
    if good:
        require_budget(replica=again)
    else:
        with pytest.raises(ReleaseBudgetSpent):
            require_budget(replica=again)


@pytest.mark.parametrize(("known", "good"), [(19, True), (20, False)])
def test_an_organization_has_twenty_signing_keys_and_revoked_ones_and_those_of_others_do_not_count(
    known: int, good: bool
) -> None:
    organization, other = make_sold().organization, make_sold().organization
    have = SigningKey.objects.filter(organization=organization).count()
    rows = [(organization, None)] * (known - have) + [(organization, timezone.now())] * 3 + [(other, None)] * 25
    SigningKey.objects.bulk_create(
        SigningKey(organization=one, public_key=secrets.token_bytes(32), revoked_at=revoked) for one, revoked in rows
    )
    public = CreatorIdentity.generate().public_bytes()
    if good:
        made = services.register_signing_key(organization=organization, public_key=public)
        assert services.register_signing_key(organization=organization, public_key=public) == made
    else:
        with pytest.raises(NotAllowed) as refusal:
            services.register_signing_key(organization=organization, public_key=public)
        assert refusal.value.code == "too_many_keys"
        assert not SigningKey.objects.filter(public_key=public).exists()


def test_a_session_is_of_the_replica_whose_token_it_is() -> None:
    one, other = make_replica("r1"), make_replica("r2")
    assert enrolment.authenticate_session(one.session_token) == one.replica
    Replica.objects.filter(pk=one.replica.pk).update(gone_at=timezone.now())
    with pytest.raises(SessionRefused):
        enrolment.authenticate_session(one.session_token)
    assert enrolment.authenticate_session(other.session_token) == other.replica
    for wrong in ("", uuid.uuid4().hex, hashlib.sha256(b"").hexdigest()):
        with pytest.raises(SessionRefused):
            enrolment.authenticate_session(wrong)
