"""A replica is a stranger until staff say otherwise: credentials, identities, terms and addresses."""

from __future__ import annotations

import ipaddress
import uuid
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from marketplace.accounts.errors import Conflict
from marketplace.catalog.models import BaseModel
from marketplace.vault import services
from marketplace.vault.addresses import Address, checked_origin
from marketplace.vault.errors import BadRequest, NotEnrolled
from marketplace.vault.models import EnrolledReplica, Lease, Replica
from protocol.encoding import encode_base64url
from tests.marketplace.vault.factories import make_base, make_sold, want
from tests.marketplace.vault.registrar import Registrar, issue, post

pytestmark = pytest.mark.django_db
NETWORKS = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")]


@pytest.fixture
def stranger(client: Client) -> Registrar:
    """A replica that has not enrolled yet."""
    services.bootstrap_platform_keys()
    return Registrar(client)


def refused(answer: Any) -> bool:
    return (answer.status_code, answer.json()["error"]["code"]) == (401, "not_enrolled")


# Credentials and identities


def test_a_credential_is_traded_once(stranger: Registrar, client: Client) -> None:
    credential = issue()
    assert stranger.enrol(credential).json() == {"name": "r1"}
    assert stranger.enrol(credential).status_code == 200  # its answer was lost: the same identity may ask again
    assert refused(Registrar(client).enrol(credential))
    assert stranger.register().status_code == 200
    assert Replica.objects.count() == 1


def test_an_expired_wrong_or_foreign_credential_is_refused_with_one_text(stranger: Registrar, client: Client) -> None:
    credential = issue()
    texts = {stranger.enrol("irc_" + "x" * 43).json()["error"]["message"]}
    texts.add(Registrar(client, "r2").enrol(credential).json()["error"]["message"])
    EnrolledReplica.objects.update(credential_expires_at=timezone.now() - timedelta(seconds=1))
    texts.add(stranger.enrol(credential).json()["error"]["message"])
    assert len(texts) == 1
    assert EnrolledReplica.objects.get().identity_public_key is None


def test_an_enrolment_that_is_not_signed_by_its_identity_is_refused(stranger: Registrar) -> None:
    other = encode_base64url(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    assert refused(stranger.enrol(issue(), identity_public_key=other))
    assert EnrolledReplica.objects.get().identity_public_key is None


def test_a_credential_is_stored_only_as_its_hash() -> None:
    credential = issue()
    assert credential.encode() not in bytes(EnrolledReplica.objects.get().credential_digest)


def test_a_name_is_not_taken_over_while_it_is_enrolled(stranger: Registrar, client: Client) -> None:
    stranger.enrol(issue())
    live = stranger.register().json()["replica_id"]
    with pytest.raises(Conflict, match="revoke it first"):
        issue()
    rogue = Registrar(client)
    assert refused(rogue.register())
    assert Replica.objects.get(gone_at__isnull=True).pk == uuid.UUID(live)


def test_a_registration_needs_the_signature_of_the_identity(stranger: Registrar, client: Client) -> None:
    stranger.enrol(issue())
    message = stranger.message()
    message["identity_signature"] = Registrar(client).message(nonce=message["nonce"])["identity_signature"]
    assert refused(stranger.register(message))
    assert not Replica.objects.exists()


def test_a_nonce_is_of_the_replica_that_asked_for_it(stranger: Registrar, client: Client) -> None:
    other = Registrar(client, "r2")
    stranger.enrol(issue())
    other.enrol(issue("r2"))
    assert refused(other.register(other.message(nonce=stranger.nonce())))


def test_a_revoked_replica_loses_session_leases_and_name(stranger: Registrar) -> None:
    stranger.enrol(issue())
    session = stranger.register().json()
    sold = make_sold()
    replica = Replica.objects.get()
    want(replica, sold.digest)
    services.release_key(replica=replica, digest=sold.digest, purpose="serve")
    out = StringIO()
    call_command("revoke_replica", "r1", stdout=out)
    assert "1 leases ended" in out.getvalue()
    beat = post(
        stranger.client, f"replicas/{replica.pk}/heartbeat", {"returned": [], "stats": {}}, session["session_token"]
    )
    assert beat.json()["error"]["code"] == "session_refused"
    assert Lease.objects.get().revoked_at is not None
    assert post(stranger.client, "replicas/challenge", {"name": "r1"}).status_code == 401
    assert issue()  # another machine may have the name now


# Terms: base model, build, host


def test_a_replica_registers_no_base_of_its_own(stranger: Registrar) -> None:
    stranger.enrol(issue())
    assert refused(stranger.register(stranger.message(base="ee" * 32)))
    assert not BaseModel.objects.filter(fingerprint="ee" * 32).exists() and not Replica.objects.exists()


def test_only_allowed_builds_register(stranger: Registrar) -> None:
    stranger.enrol(issue(builds=["aa" * 32]))
    assert refused(stranger.register())  # no evidence at all
    assert refused(stranger.register(stranger.message(evidence={"kind": "build-digest", "digest": "bb" * 32})))
    allowed = stranger.message(evidence={"kind": "build-digest", "digest": "aa" * 32})
    assert stranger.register(allowed).status_code == 200


def addresses(*found: str) -> Any:
    def resolver(host: str) -> list[Address]:
        return [ipaddress.ip_address(one) for one in found]

    return resolver


@pytest.mark.parametrize(
    "found",
    [
        ("169.254.169.254",),  # a cloud's metadata
        ("8.8.8.8",),
        ("10.0.0.7", "8.8.8.8"),  # one of several
        ("0.0.0.0",),
        ("224.0.0.1",),
        ("fe80::1",),
        ("::ffff:169.254.169.254",),
        ("2001:db8::1",),
        (),
    ],
)
def test_a_url_outside_the_networks_of_replicas_is_refused(found: tuple[str, ...]) -> None:
    with pytest.raises(NotEnrolled):
        checked_origin("http://gpu-7:8100", host="gpu-7", networks=NETWORKS, resolver=addresses(*found))


def test_link_local_addresses_are_refused_whatever_the_networks() -> None:
    anywhere = [ipaddress.ip_network("0.0.0.0/0")]
    with pytest.raises(NotEnrolled):
        checked_origin("http://m:80", host="m", networks=anywhere, resolver=addresses("169.254.169.254"))


def test_the_checked_address_is_the_one_that_is_called() -> None:
    resolver = addresses("10.0.0.7", "10.0.0.8")
    assert checked_origin("http://GPU-7:8100", host="gpu-7", networks=NETWORKS, resolver=resolver) == (
        "http://10.0.0.7:8100"
    )
    assert checked_origin("http://g:1", host="g", networks=NETWORKS, resolver=addresses("fd00::7")) == (
        "http://[fd00::7]:1"
    )
    # A certificate has to prove the name on every connection, so that the name may stay.
    assert checked_origin("https://gpu-7", host="gpu-7", networks=NETWORKS, resolver=resolver) == "https://gpu-7:443"


def test_another_host_than_the_allowed_one_is_refused(stranger: Registrar) -> None:
    with pytest.raises(NotEnrolled, match="may register at the host gpu-7"):
        checked_origin("http://10.0.0.7:1", host="gpu-7", networks=NETWORKS, resolver=addresses("10.0.0.7"))
    stranger.enrol(issue())
    assert refused(stranger.register(stranger.message(url="http://127.0.0.2:8100")))


def test_a_name_that_cannot_be_resolved_or_a_url_with_a_path_is_refused() -> None:
    def fails(host: str) -> list[Address]:
        raise OSError

    with pytest.raises(NotEnrolled, match="cannot be resolved"):
        checked_origin("http://gone:1", host="gone", networks=NETWORKS, resolver=fails)
    with pytest.raises(BadRequest):
        checked_origin("http://gpu-7:1/latest", host="gpu-7", networks=NETWORKS, resolver=addresses("10.0.0.7"))


# Commands


def test_staff_allow_change_and_list_replicas(tmp_path: Path) -> None:
    make_base()
    file, out = tmp_path / "credential", StringIO()
    call_command("issue_replica_credential", "gpu-7", base="tiny", host="GPU-7", credential_file=file, stderr=out)
    assert file.read_text().startswith("irc_") and file.stat().st_mode & 0o777 == 0o600
    row = EnrolledReplica.objects.get()
    assert (row.name, row.host, row.builds) == ("gpu-7", "gpu-7", [])
    call_command("change_replica", "gpu-7", build=["aa" * 32], releases_per_hour=9, stdout=out)
    row.refresh_from_db()
    assert (row.host, row.builds, row.releases_per_hour) == ("gpu-7", ["aa" * 32], 9)
    call_command("list_replicas", stdout=out)
    assert "gpu-7  waits for its credential to be used  tiny" in out.getvalue()


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        ("issue_replica_credential", {"base": "no-such-base", "host": "h"}, "no base model is called"),
        ("issue_replica_credential", {"base": "tiny", "host": "h", "build": ["x"]}, "64 hex digits"),
        ("issue_replica_credential", {"base": "tiny", "host": "h", "expires": 0}, "between a second and 30 days"),
        ("change_replica", {}, "no replica is called"),
        ("revoke_replica", {}, "no replica is called"),
    ],
)
def test_a_command_that_cannot_be_carried_out_says_why(command: str, arguments: dict[str, Any], reason: str) -> None:
    make_base()
    with pytest.raises(CommandError, match=reason):
        call_command(command, "gpu-7", stdout=StringIO(), **arguments)
    assert not EnrolledReplica.objects.exists()
