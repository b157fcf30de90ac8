"""The replica-facing API: registration, sessions, heartbeats, leases and package downloads over HTTP."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.conf import settings
from django.test import Client
from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.vault import enrolment, keys, selectors, services
from marketplace.vault.models import Lease, Release, Replica, ReplicaChallenge
from protocol.encoding import decode_base64url, encode_base64url
from protocol.version import PROTOCOL_VERSION
from sealed_weights import ReplicaKeypair, SealedLease, open_lease
from tests.marketplace.vault.factories import FINGERPRINT, make_replica, make_sold, want, write_package
from tests.marketplace.vault.registrar import Registrar, issue, post

pytestmark = pytest.mark.django_db


@pytest.fixture
def registrar(client: Client) -> Registrar:
    services.bootstrap_platform_keys()
    made = Registrar(client)
    assert made.enrol(issue()).status_code == 200
    return made


def test_a_registered_replica_can_use_its_session(registrar: Registrar) -> None:
    answer = registrar.register().json()
    replica = Replica.objects.get()
    assert answer["replica_id"] == str(replica.pk)
    assert decode_base64url(answer["vault_public_key"]) == keys.vault_public_key()
    assert list(answer["ticket_keys"].values()) == [encode_base64url(p) for p in keys.ticket_public_keys().values()]
    assert (answer["heartbeat_seconds"], answer["lease_seconds"]) == (2, 30)
    assert answer["session_token"].encode() not in bytes(replica.session_digest)
    beat = {"returned": [], "stats": {"running": 1}}
    alive = post(registrar.client, f"replicas/{replica.pk}/heartbeat", beat, answer["session_token"])
    assert alive.json() == {"revoked": [], "ended": [], "ticket_keys": answer["ticket_keys"]}
    assert selectors.live_replicas(FINGERPRINT) == [replica]
    assert selectors.live_replicas("00" * 32) == []


@pytest.mark.parametrize(
    ("theirs", "advice"),
    [
        (None, "upgrade the replica"),
        (PROTOCOL_VERSION - 1, "upgrade the replica"),
        (PROTOCOL_VERSION + 1, "upgrade this platform"),
    ],
)
def test_a_replica_of_another_protocol_is_refused_with_both_versions(
    registrar: Registrar, theirs: int | None, advice: str
) -> None:
    message = registrar.message(protocol_version=theirs)
    if theirs is None:
        del message["protocol_version"]  # as replicas did before the protocol had a version
    refused = registrar.register(message)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "protocol_version")
    assert f"speaks protocol {theirs or 1}," in error["message"] and f"protocol {PROTOCOL_VERSION}" in error["message"]
    assert advice in error["message"]
    assert not Replica.objects.exists()


def test_a_newer_boot_replaces_one_that_left_or_fell_silent(registrar: Registrar) -> None:
    first = registrar.register().json()
    for change in ({"left_at": timezone.now()}, {"last_seen_at": timezone.now() - timedelta(seconds=5.1)}):
        Replica.objects.filter(gone_at=None).update(**change)
        registrar.receipt_key = Ed25519PrivateKey.generate()
        second = registrar.register()
        assert second.status_code == 200
        assert [str(r.pk) for r in selectors.live_replicas()] == [second.json()["replica_id"]]
    beat = {"returned": [], "stats": {}}
    refused = post(registrar.client, f"replicas/{first['replica_id']}/heartbeat", beat, first["session_token"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "session_refused")


def test_a_second_process_with_the_same_identity_is_refused_while_the_first_is_there(registrar: Registrar) -> None:
    first = registrar.register().json()
    own_key, registrar.receipt_key = registrar.receipt_key, Ed25519PrivateKey.generate()
    refused = registrar.register()
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "name_in_use")
    assert Replica.objects.get().gone_at is None, "the first one's session goes on"
    registrar.receipt_key = own_key  # the first boot, whose answer was lost
    again = registrar.register()
    assert again.status_code == 200
    assert Replica.objects.get(pk=first["replica_id"]).gone_at is not None


def test_a_stranger_gets_not_even_a_nonce(registrar: Registrar) -> None:
    assert post(registrar.client, "replicas/challenge", {"name": "r2"}).status_code == 401
    assert not ReplicaChallenge.objects.exists()


def test_a_nonce_is_good_once_and_for_a_minute(registrar: Registrar) -> None:
    nonce = registrar.nonce()
    assert registrar.register(registrar.message(nonce=nonce)).status_code == 200
    assert registrar.register(registrar.message(nonce=nonce)).status_code == 401
    stale = registrar.nonce()
    ReplicaChallenge.objects.update(created_at=timezone.now() - timedelta(seconds=61))
    assert registrar.register(registrar.message(nonce=stale)).status_code == 401
    assert registrar.register(registrar.message(nonce=encode_base64url(bytes(32)))).status_code == 401
    assert Replica.objects.count() == 1


def test_a_registration_changed_after_signing_is_refused(registrar: Registrar) -> None:
    for field, value in (
        ("url", "http://evil.example:80"),
        ("hpke_public_key", encode_base64url(ReplicaKeypair.generate().public_bytes())),
        ("evidence", {"kind": "build-digest", "digest": "00" * 32}),
        ("role", "decode"),
        ("transfer_url", "https://127.0.0.1:8101"),
        ("receipt_public_key", encode_base64url(Ed25519PrivateKey.generate().public_key().public_bytes_raw())),
    ):
        refused = registrar.register(registrar.message() | {field: value})
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "not_enrolled"), field
    assert not Replica.objects.exists()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"name": "../r1"}, 400),
        ({"url": "file:///etc/passwd"}, 400),
        ({"url": "http://user:secret@127.0.0.1:1"}, 400),
        ({"url": "http://127.0.0.1:8100/path"}, 400),
        ({"url": "http://127.0.0.1:99999"}, 400),
        ({"hpke_public_key": "AAAA"}, 400),
        ({"hpke_public_key": encode_base64url(bytes(32))}, 400),
        ({"evidence": {"kind": "trust me"}}, 401),
        ({"evidence": {"kind": "build-digest", "digest": "x"}}, 401),
        ({"role": "judge"}, 400),
        ({"role": "prefill"}, 400),
        ({"transfer_url": "http://127.0.0.1:8101"}, 400),
        ({"transfer_url": "https://127.0.0.2:8101"}, 401),
        ({"more": 1}, 400),
    ],
)
def test_a_malformed_registration_is_refused(registrar: Registrar, change: dict[str, Any], status: int) -> None:
    refused = registrar.register(registrar.message(**change))
    assert refused.status_code == status, refused.content
    assert not Replica.objects.exists()


def test_bodies_that_are_not_the_protocols_are_refused(registrar: Registrar) -> None:
    assert post(registrar.client, "replicas/challenge", b"[" * 100_000).status_code == 400
    assert post(registrar.client, "replicas/challenge", b"nonsense").status_code == 400
    assert post(registrar.client, "replicas/challenge", b" " * (2**20 + 1)).status_code == 413
    assert registrar.client.get("/internal/v1/replicas/challenge").status_code == 405
    assert not ReplicaChallenge.objects.exists()


def test_a_replica_leases_a_key_over_http(client: Client) -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    answer = post(client, "leases", {"digests": [sold.digest], "purpose": "serve"}, booted.session_token)
    assert answer.status_code == 200
    (lent,) = answer.json()["lent"]
    lease = lent["key"]
    sealed = SealedLease.from_json(lease["lease"])
    assert open_lease(sealed, booted.keypair, keys.vault_public_key()) == sold.dek
    assert decode_base64url(lease["creator_public_key"]) == sold.identity.public_bytes()
    assert lease["identity"] == {
        "creator_id": str(sold.organization.pk),
        "model_id": str(sold.version.model_id),
        "version": 1,
        "base": FINGERPRINT,
    }
    assert lease["package_size"] == 1234
    assert bytes(sold.dek) not in answer.content


@pytest.mark.parametrize(
    ("state", "code"),
    [("revoked", "adapter_revoked"), ("retired", "adapter_revoked"), ("verifying", "release_denied")],
)
def test_a_denied_lease_says_why_and_logs_nothing(client: Client, state: str, code: str) -> None:
    sold, booted = make_sold(state), make_replica()
    want(booted.replica, sold.digest)
    answer = post(client, "leases", {"digests": [sold.digest], "purpose": "serve"}, booted.session_token)
    (lent,) = answer.json()["lent"]
    assert (lent["key"], lent["refusal"]["code"]) == (None, code)
    assert not Release.objects.exists()


def test_a_stranger_or_a_gone_replica_gets_no_lease_heartbeat_or_package(client: Client, tmp_path: Path) -> None:
    sold, booted, other = make_sold(), make_replica("r1"), make_replica("r2")
    ask = {"digests": [sold.digest], "purpose": "serve"}
    assert post(client, "leases", ask, "no such session").status_code == 401
    beat = {"returned": [], "stats": {}}
    assert post(client, f"replicas/{other.replica.pk}/heartbeat", beat, booted.session_token).status_code == 401
    Replica.objects.filter(pk=booted.replica.pk).update(last_seen_at=timezone.now() - timedelta(seconds=31))
    assert enrolment.mark_silent_replicas() == 1
    assert post(client, "leases", ask, booted.session_token).status_code == 401
    assert post(client, f"packages/{sold.digest}/url", {}, booted.session_token).status_code == 401
    assert client.get(f"/internal/v1/packages/{sold.digest}").status_code == 403
    assert not Release.objects.exists()


def test_a_package_downloads_whole_and_from_any_byte(client: Client) -> None:
    sold, booted = make_sold(), make_replica()
    content = bytes(range(256)) * 5000
    write_package(settings.ENV.blob_dir, sold.digest, content)
    located = post(client, f"packages/{sold.digest}/url", {}, booted.session_token).json()
    assert located["seconds"] == 60

    def get(asked: str | None = None) -> Any:
        return client.get(f"/internal/v1/{located['url']}", headers={"Range": asked} if asked else {})

    whole = get()
    assert (whole.status_code, b"".join(whole.streaming_content)) == (200, content)
    part = get("bytes=1000000-")
    assert (part.status_code, b"".join(part.streaming_content)) == (206, content[1000000:])
    assert part["Content-Range"] == f"bytes 1000000-{len(content) - 1}/{len(content)}"
    middle = get("bytes=5-9")
    assert (middle["Content-Length"], b"".join(middle.streaming_content)) == ("5", content[5:10])
    assert get(f"bytes={len(content)}-").status_code == 416
    assert get("bytes=9-5").status_code == 416
    assert get("bytes=a-b").status_code == 200


def test_there_is_no_url_of_what_is_not_a_package(client: Client) -> None:
    sold, booted = make_sold(), make_replica()

    def locate(digest: str) -> Any:
        return post(client, f"packages/{digest}/url", {}, booted.session_token)

    missing = client.get(f"/internal/v1/{locate(sold.digest).json()['url']}")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_package")
    write_package(settings.ENV.blob_dir, "00" * 32, b"not of any version")
    assert locate("00" * 32).status_code == 404
    assert locate("..%2froot.key").status_code == 404


def test_a_url_is_of_one_package_and_one_minute(client: Client) -> None:
    sold, booted = make_sold(), make_replica()
    write_package(settings.ENV.blob_dir, sold.digest, b"sealed")
    write_package(settings.ENV.blob_dir, "00" * 32, b"another")
    with time_machine.travel("2026-07-01T12:00:00Z", tick=False) as clock:
        url = post(client, f"packages/{sold.digest}/url", {}, booted.session_token).json()["url"]
        grant = url.partition("?grant=")[2]
        clock.shift(59)
        assert client.get(f"/internal/v1/{url}").status_code == 200
        others, forged = f"{'00' * 32}?grant={grant}", f"{sold.digest}?grant={grant[:-1]}"
        for wrong in (others, forged, f"{sold.digest}?grant=", sold.digest):
            refused = client.get(f"/internal/v1/packages/{wrong}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "grant_refused")
        clock.shift(2)
        assert client.get(f"/internal/v1/{url}").status_code == 403


def test_a_revoked_versions_lease_ends_with_the_next_heartbeat(client: Client) -> None:
    sold, booted = make_sold(), make_replica()
    want(booted.replica, sold.digest)
    answer = post(client, "leases", {"digests": [sold.digest], "purpose": "serve"}, booted.session_token).json()
    release_id = answer["lent"][0]["key"]["lease"]["release_id"]
    beat: dict[str, Any] = {"returned": [], "stats": {}}
    path = f"replicas/{booted.replica.pk}/heartbeat"
    assert post(client, path, beat, booted.session_token).json()["ended"] == []
    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.REVOKED)
    services.revoke_leases(version=sold.version)
    after = post(client, path, beat, booted.session_token).json()
    assert (after["ended"], after["revoked"]) == ([release_id], [sold.digest])
    assert Lease.objects.get().revoked_at is not None


def test_keys_come_in_batches_and_a_refused_one_leaves_the_others(client: Client) -> None:
    good, withdrawn, booted = [make_sold(), make_sold()], make_sold("revoked"), make_replica()
    digests = [good[0].digest, withdrawn.digest, "00" * 32, good[1].digest]
    for digest in digests:
        want(booted.replica, digest)
    answer = post(client, "leases", {"digests": digests, "purpose": "serve"}, booted.session_token).json()["lent"]
    assert [one["refusal"] and one["refusal"]["code"] for one in answer] == [
        None,
        "adapter_revoked",
        "unknown_package",
        None,
    ]
    for sold, one in ((good[0], answer[0]), (good[1], answer[3])):
        sealed = SealedLease.from_json(one["key"]["lease"])
        assert open_lease(sealed, booted.keypair, keys.vault_public_key()) == sold.dek
    assert Release.objects.count() == 2
    for asked in ([], ["00" * 32] * 33):
        refused = post(client, "leases", {"digests": asked, "purpose": "serve"}, booted.session_token)
        assert refused.status_code == 400
