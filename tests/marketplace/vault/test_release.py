"""Releasing a key: who gets it, what is logged first, and what happens when the log cannot be written."""

from __future__ import annotations

import base64
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.utils import timezone

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Version
from marketplace.vault import identities, keys, selectors, services, sessions
from marketplace.vault.errors import (
    ChainBroken,
    ReleaseDenied,
    SessionRefused,
    UnknownPackage,
    VersionRevoked,
    WrongBase,
)
from marketplace.vault.models import DataKey, Lease, Release, Replica
from sealed_weights import AuthenticationError, ReleaseEntry, SignedCheckpoint, open_lease, verify_chain
from tests.database import as_owner
from tests.marketplace.vault.factories import Booted, Sold, make_model, make_replica, make_sold, want

pytestmark = pytest.mark.django_db


def test_a_released_key_opens_for_the_replica_it_was_lent_to() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    sealed = services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert open_lease(sealed, booted.keypair, keys.vault_public_key()) == sold.dek
    assert sealed.grant.replica_id == booted.replica.pk
    release = Release.objects.get()
    assert (release.pk, release.digest, release.purpose) == (sealed.grant.release_id, sold.digest, "serve")
    assert release.replica_key_fingerprint == booted.keypair.fingerprint()
    assert timedelta(seconds=25) < release.lease.ends_at - timezone.now() <= timedelta(seconds=30)


@pytest.mark.parametrize(
    ("state", "purpose", "allowed"),
    [
        ("uploading", "serve", False),
        ("uploading", "verify", False),
        ("verifying", "serve", False),
        ("verifying", "verify", True),
        ("verified", "serve", True),
        ("verified", "verify", False),
        ("in_review", "serve", True),
        ("in_review", "verify", False),
        ("published", "serve", True),
        ("published", "verify", False),
        ("refused", "serve", False),
        ("refused", "verify", False),
        ("retired", "serve", False),
        ("retired", "verify", False),
        ("revoked", "serve", False),
        ("revoked", "verify", False),
    ],
)
def test_the_versions_state_decides_what_its_key_is_released_for(state: str, purpose: str, allowed: bool) -> None:
    sold, booted = make_sold(state), make_replica()
    want(booted.replica, sold.digest)
    if allowed:
        services.release_key(replica=booted.replica, digest=sold.digest, purpose=purpose)
        assert Release.objects.count() == 1
        return
    with pytest.raises(ReleaseDenied) as refused:
        services.release_key(replica=booted.replica, digest=sold.digest, purpose=purpose)
    assert isinstance(refused.value, VersionRevoked) == (state in {"retired", "revoked"})
    assert not Release.objects.exists() and not Lease.objects.exists()


def test_an_unknown_purpose_is_denied() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    with pytest.raises(ReleaseDenied):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="export")
    assert not Release.objects.exists()


def test_a_replica_of_another_base_gets_nothing() -> None:
    sold, booted = make_sold(), make_replica(fingerprint="cd" * 32)
    want(booted.replica, sold.digest)
    with pytest.raises(WrongBase):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert not Release.objects.exists()


def test_an_unknown_or_shredded_package_is_not_released() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    DataKey.objects.all().delete()
    for digest in (sold.digest, "00" * 32):
        with pytest.raises(UnknownPackage):
            services.release_key(replica=booted.replica, digest=digest, purpose="serve")
    assert not Release.objects.exists()


def test_when_the_log_row_cannot_be_written_the_key_is_never_unwrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    touched: list[str] = []
    monkeypatch.setattr(services, "open_creator_kek", lambda *a: touched.append("kek"))
    monkeypatch.setattr(services, "seal_lease", lambda *a: touched.append("lease"))
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE vault_release ADD CONSTRAINT log_is_broken CHECK (sequence < 0) NOT VALID")
    with pytest.raises(IntegrityError):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert touched == []
    assert not Release.objects.exists() and not Lease.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_log_row_is_committed_before_the_key_is_unwrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    seen_from_outside: list[int] = []
    really_open = services.open_creator_kek

    def spy(*arguments: object) -> bytearray:
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
        return really_open(*arguments)  # type: ignore[arg-type]

    def count() -> None:
        seen_from_outside.append(Release.objects.count())
        connection.close()

    monkeypatch.setattr(services, "open_creator_kek", spy)
    services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert seen_from_outside == [1]


@pytest.mark.django_db(transaction=True)
def test_a_key_is_not_released_inside_a_transaction_that_could_still_roll_back() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert not Release.objects.exists()


@pytest.mark.parametrize("statement", ["UPDATE vault_release SET purpose = 'serve'", "DELETE FROM vault_release"])
def test_the_database_refuses_to_change_the_log(statement: str) -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    refused = pytest.raises(DatabaseError, match="append-only")
    with refused, transaction.atomic(), as_owner(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert Release.objects.count() == 1


def test_each_creator_has_a_chain_of_their_own() -> None:
    first, second, booted = make_sold(), make_sold(), make_replica()
    for digest in (first.digest, second.digest, first.digest):
        want(booted.replica, digest)
        services.release_key(replica=booted.replica, digest=digest, purpose="serve")
    assert selectors.verify_own_chain(organization=first.organization) == 2
    assert selectors.verify_own_chain(organization=second.organization) == 1


@pytest.mark.django_db(transaction=True)
def test_releases_at_once_do_not_fork_the_chain() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    failures: list[Exception] = []

    def run() -> None:
        try:
            for _ in range(3):
                services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert selectors.verify_own_chain(organization=sold.organization) == 12


def _tamper(statement: str) -> None:
    with as_owner(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE vault_release DISABLE TRIGGER vault_release_append_only")
        cursor.execute(statement)
        cursor.execute("ALTER TABLE vault_release ENABLE TRIGGER vault_release_append_only")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE vault_release SET purpose = 'verify' WHERE sequence = 2",
        "UPDATE vault_release SET released_at_us = released_at_us + 1 WHERE sequence = 1",
        "UPDATE vault_release SET previous_hash = entry_hash WHERE sequence = 2",
        "UPDATE vault_release SET entry_hash = previous_hash WHERE sequence = 3",
        "DELETE FROM vault_lease USING vault_release r WHERE r.id = release_id AND r.sequence = 2;"
        "DELETE FROM vault_release WHERE sequence = 2",
    ],
)
def test_a_tampered_chain_is_found(statement: str) -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    for _ in range(3):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert selectors.verify_own_chain(organization=sold.organization) == 3
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # pending foreign-key checks would block ALTER TABLE
    _tamper(statement)
    with pytest.raises(ChainBroken):
        selectors.verify_own_chain(organization=sold.organization)


def test_an_export_verifies_offline_and_a_checkpoint_kept_elsewhere_finds_a_cut_tail() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    for _ in range(3):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    export = selectors.export_chain(organization=sold.organization)
    entries = [ReleaseEntry.from_json(entry) for entry in export["releases"]]
    checkpoint = SignedCheckpoint.from_json(export["checkpoint"])
    vault_public = base64.b64decode(export["vault_public_key"])
    verify_chain(entries, checkpoint=checkpoint, vault_public=vault_public)
    with pytest.raises(AuthenticationError):
        verify_chain(entries[:2], checkpoint=checkpoint, vault_public=vault_public)


def test_an_empty_chain_exports_without_a_checkpoint() -> None:
    services.bootstrap_platform_keys()
    model = make_model()
    export = selectors.export_chain(organization=model.organization)
    assert (export["releases"], export["checkpoint"]) == ([], None)
    assert selectors.custody(organization=model.organization).checkpoint is None


def test_custody_shows_a_creator_only_their_own_releases() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    stranger = Organization.objects.create(slug="stranger", name="Stranger")
    assert len(selectors.custody(organization=sold.organization, model=sold.version.model).releases) == 1
    assert selectors.custody(organization=stranger, model=sold.version.model).releases == []
    assert selectors.custody(organization=sold.organization, model=make_model(sold.organization)).releases == []


def lend(booted: Booted, sold: Sold, purpose: str = "serve") -> UUID:
    want(booted.replica, sold.digest)
    return services.release_key(replica=booted.replica, digest=sold.digest, purpose=purpose).grant.release_id


def heard(seconds_ago: float) -> None:
    Replica.objects.update(last_seen_at=timezone.now() - timedelta(seconds=seconds_ago))


def live() -> set[UUID]:
    return set(Lease.objects.live(timezone.now()).values_list("pk", flat=True))


def test_a_heartbeat_renews_every_lease_of_its_session_and_names_what_was_withdrawn() -> None:
    kept, pulled, booted = make_sold(), make_sold(), make_replica()
    ids = {sold.digest: lend(booted, sold) for sold in (kept, pulled)}
    heard(20)
    Version.objects.filter(pk=pulled.version.pk).update(state=Version.State.REVOKED)
    services.revoke_leases(version=pulled.version)
    ended = sessions.record_heartbeat(replica=booted.replica, stats={"a": 1})
    assert (ended.revoked, ended.leases) == ([pulled.digest], [str(ids[pulled.digest])])
    lease = Lease.objects.select_related("release__replica").get(pk=ids[kept.digest])
    assert lease.ends_at > timezone.now() + timedelta(seconds=25)
    assert live() == {ids[kept.digest]}
    booted.replica.refresh_from_db()
    assert booted.replica.stats["a"] == 1


def test_a_heartbeat_costs_the_same_whatever_is_held(django_assert_num_queries: Any) -> None:
    booted = make_replica()
    for _ in range(5):
        lend(booted, make_sold())
    with django_assert_num_queries(5):  # with those that begin and end the transaction
        sessions.record_heartbeat(replica=booted.replica, stats={})


def test_what_is_withdrawn_ends_though_nobody_ended_the_lease() -> None:
    """The worker that ends leases may be gone: the version's state is enough."""
    pulled, other, booted = make_sold(), make_sold(), make_replica()
    released = lend(booted, pulled)
    Version.objects.filter(pk__in=[pulled.version.pk, other.version.pk]).update(state=Version.State.RETIRED)
    ended = sessions.record_heartbeat(replica=booted.replica, stats={})
    assert ended.revoked == sorted([pulled.digest, other.digest]), "also what it does not hold: it may be asking"
    assert ended.leases == [str(released)]
    Version.objects.update(state_changed_at=timezone.now() - timedelta(seconds=sessions.TOLD_SECONDS + 1))
    assert sessions.record_heartbeat(replica=booted.replica, stats={}).revoked == []


def test_a_key_lent_to_verify_ends_with_the_verification() -> None:
    sold, booted = make_sold(Version.State.VERIFYING), make_replica()
    released = lend(booted, sold, "verify")
    assert sessions.record_heartbeat(replica=booted.replica, stats={}).leases == []
    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.VERIFIED)
    ended = sessions.record_heartbeat(replica=booted.replica, stats={})
    assert (ended.revoked, ended.leases) == ([], [str(released)])


def test_a_session_that_was_silent_while_a_lease_lasts_is_over_with_its_leases() -> None:
    sold, booted = make_sold(), make_replica()
    lend(booted, sold)
    heard(29)
    assert len(live()) == 1
    heard(31)
    assert live() == set()
    with pytest.raises(SessionRefused):
        sessions.record_heartbeat(replica=booted.replica, stats={})
    assert live() == set(), "a lease that ran out does not rise again"


def test_a_replica_gives_back_its_own_leases_alone() -> None:
    mine, theirs = make_replica("r1"), make_replica("r2")
    sold = make_sold()
    own, foreign, kept = lend(mine, sold), lend(theirs, sold), lend(mine, make_sold())
    sessions.record_heartbeat(replica=mine.replica, stats={}, returned=[own, foreign])
    assert live() == {foreign, kept}


def test_a_session_that_ended_while_its_key_was_on_the_way_gets_none() -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    identities.revoke_replica(name=booted.replica.name)
    with pytest.raises(SessionRefused):
        services.release_key(replica=booted.replica, digest=sold.digest, purpose="serve")
    assert not Release.objects.exists() and not Lease.objects.exists()
