"""No key of a creator leaves for rows that a thief of the database login wrote (`tests.marketplace.thief`)."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client

from marketplace.accounts.seals import SealBroken
from marketplace.catalog.models import Version
from marketplace.vault import keys
from marketplace.vault.models import EnrolledReplica, PlatformKey, Release, ReleaseOrder, Replica
from sealed_weights import ReplicaKeypair
from tests.marketplace import thief
from tests.marketplace.vault.factories import FINGERPRINT, Booted, Sold, make_replica, make_sold, want
from tests.marketplace.vault.registrar import post

pytestmark = pytest.mark.django_db


@pytest.fixture
def sold() -> Sold:
    return make_sold()


def ask(client: Client, sold: Sold, token: str, purpose: str = "serve") -> Any:
    return post(client, "leases", {"digests": [sold.digest], "purpose": purpose}, token)


def nothing_left(answer: Any) -> bool:
    """Return whether an answer carries no key, and nothing was even logged as released."""
    lent = answer.json().get("lent", [])
    return not any(one["key"] for one in lent) and not Release.objects.exists()


def invent_enrolment(name: str, seal: bytes) -> None:
    thief.run(
        "INSERT INTO vault_enrolledreplica (name, base_model_id, host, builds, releases_per_hour, credential_digest,"
        " credential_expires_at, identity_public_key, issued_at, enrolled_at, seal)"
        " SELECT %s, id, '127.0.0.1', '[]', 1000, %s, now(), %s, now(), now(), %s FROM catalog_basemodel",
        *(name, secrets.token_bytes(32), secrets.token_bytes(32), seal),
    )


def invent_boot(name: str, token: str, seal: bytes) -> tuple[uuid.UUID, ReplicaKeypair]:
    pair, pk = ReplicaKeypair.generate(), uuid.uuid4()
    thief.run(
        "INSERT INTO vault_replica (id, name, url, base_fingerprint, hpke_public_key, receipt_public_key, evidence,"
        " session_digest, registered_at, last_seen_at, stats, role, transfer_url, seal)"
        " VALUES (%s, %s, 'http://127.0.0.1:9', %s, %s, %s, '{}', %s, now(), now(), '{}', 'both', '', %s)",
        *(pk, name, FINGERPRINT, pair.public_bytes(), secrets.token_bytes(32)),
        *(hashlib.sha256(token.encode()).digest(), seal),
    )
    return pk, pair


def invent_order(replica_id: uuid.UUID, digest: str, seal: bytes) -> None:
    for kind in ("verify", "prefetch"):
        thief.run(
            "INSERT INTO vault_releaseorder (replica_id, digest, kind, expires_at, seal)"
            " VALUES (%s, %s, %s, now() + interval '1 hour', %s)",
            *(replica_id, digest, kind, seal),
        )


def test_an_invented_replica_boot_and_order_get_no_key(client: Client, sold: Sold) -> None:
    seal = secrets.token_bytes(32)
    invent_enrolment("thief", seal)
    replica_id, _ = invent_boot("thief", "token", seal)
    invent_order(replica_id, sold.digest, seal)
    for purpose in ("serve", "verify"):
        assert nothing_left(ask(client, sold, "token", purpose))


def test_a_real_replica_gets_no_key_for_an_invented_order(client: Client, sold: Sold) -> None:
    booted = make_replica()
    invent_order(booted.replica.pk, sold.digest, secrets.token_bytes(32))
    assert nothing_left(ask(client, sold, booted.session_token))


def test_an_order_is_good_for_its_own_package_and_time(client: Client, sold: Sold) -> None:
    booted, other = make_replica(), make_sold()
    want(booted.replica, other.digest)
    thief.change("vault_releaseorder", "true", digest=sold.digest)
    assert nothing_left(ask(client, sold, booted.session_token))


def test_an_order_cannot_be_made_longer(client: Client, sold: Sold) -> None:
    booted = make_replica()
    want(booted.replica, sold.digest)
    thief.change("vault_releaseorder", "true", expires_at="2999-01-01T00:00:00Z")
    assert nothing_left(ask(client, sold, booted.session_token))


@pytest.mark.parametrize("column", Replica.SEALED)
def test_a_boot_that_was_changed_gets_no_key(client: Client, sold: Sold, column: str) -> None:
    booted, values = make_replica(), changed_boot()
    want(booted.replica, sold.digest)
    if column == "id":  # its orders go with it
        thief.run("DELETE FROM vault_releaseorder")
    thief.change("vault_replica", "true", **{column: values[column]})
    token = "known" if column == "session_digest" else booted.session_token
    assert nothing_left(ask(client, sold, token))


def changed_boot() -> dict[str, Any]:
    return {
        "id": uuid.uuid4(),
        "name": "r2",
        "url": "http://10.0.0.1:9",
        "base_fingerprint": "cd" * 32,
        "hpke_public_key": ReplicaKeypair.generate().public_bytes(),
        "receipt_public_key": secrets.token_bytes(32),
        "evidence": {"kind": "build-digest"},
        "session_digest": hashlib.sha256(b"known").digest(),
        "role": "prefill",
        "transfer_url": "http://10.0.0.1:10",
    }


@pytest.mark.parametrize(
    "change",
    [{"releases_per_hour": 10**6}, {"identity_public_key": b"x" * 32}, {"host": "evil"}, {"revoked_at": None}],
)
def test_an_enrolment_that_was_changed_lends_no_key(client: Client, sold: Sold, change: dict[str, Any]) -> None:
    booted = make_replica()
    if "revoked_at" in change:
        EnrolledReplica.objects.filter(name="r1").update(revoked_at="2026-01-01T00:00:00Z")
    want(booted.replica, sold.digest)
    thief.change("vault_enrolledreplica", "true", **change)
    assert nothing_left(ask(client, sold, booted.session_token))


def test_a_boot_of_a_revoked_enrolment_gets_no_key_though_its_row_lives(client: Client, sold: Sold) -> None:
    booted = make_replica()
    want(booted.replica, sold.digest)
    EnrolledReplica.objects.filter(name="r1").update(revoked_at="2026-01-01T00:00:00Z")
    assert ask(client, sold, booted.session_token).status_code == 401
    assert not Release.objects.exists()


@pytest.mark.parametrize("state", ["revoked", "retired", "refused"])
def test_a_withdrawn_version_is_not_released_again_by_its_row(client: Client, state: str) -> None:
    sold, booted = make_sold(state), make_replica()
    want(booted.replica, sold.digest)
    thief.change("catalog_version", "true", state="published")
    assert nothing_left(ask(client, sold, booted.session_token))


def test_another_package_cannot_be_put_under_a_version(client: Client, sold: Sold) -> None:
    booted, digest = make_replica(), "12" * 32
    want(booted.replica, digest)
    thief.change("catalog_version", "true", package_digest=digest)
    assert nothing_left(post(client, "leases", {"digests": [digest], "purpose": "serve"}, booted.session_token))


def test_the_test_would_notice_a_key(client: Client, sold: Sold) -> None:
    booted = make_replica()
    want(booted.replica, sold.digest)
    assert not nothing_left(ask(client, sold, booted.session_token))


@pytest.mark.parametrize("purpose", PlatformKey.Purpose.values)
def test_a_platform_key_of_a_thief_is_shown_to_nobody(sold: Sold, purpose: str) -> None:
    before = keys.ticket_public_keys()
    public = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    thief.change("vault_platformkey", "purpose = %s", purpose, public_key=public)
    with pytest.raises(SealBroken):
        keys.current_row(purpose)
    thief.run(
        "INSERT INTO vault_platformkey (id, purpose, public_key, wrapped_private_key, created_at, seal)"
        " VALUES (%s, 'ticket', %s, '', now(), '')",
        *(uuid.uuid4(), public),
    )
    with pytest.raises(SealBroken):
        keys.ticket_public_keys()
    assert public not in before.values()


def test_an_order_of_the_platform_for_a_version_that_was_changed_is_refused_too(sold: Sold) -> None:
    thief.change("catalog_version", "true", state="verifying")
    with pytest.raises(SealBroken):
        Version.objects.get(pk=sold.version.pk)
    assert not ReleaseOrder.objects.exists()


def booted_twice() -> tuple[Booted, Booted]:
    return make_replica("r1"), make_replica("r2")


def test_a_seal_is_good_for_its_own_row_alone(client: Client, sold: Sold) -> None:
    mine, other = booted_twice()
    want(other.replica, sold.digest)
    [(seal,)] = thief.run("SELECT seal FROM vault_replica WHERE id = %s", other.replica.pk)
    thief.change("vault_replica", "id = %s", mine.replica.pk, seal=seal)
    thief.change("vault_releaseorder", "true", replica_id=mine.replica.pk)
    assert nothing_left(ask(client, sold, mine.session_token))
