"""Replicas of a fleet enrol themselves, within what staff allowed; every lie is refused and leaves nothing behind."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from marketplace.vault import services
from marketplace.vault.errors import BadRequest, NotEnrolled
from marketplace.vault.fleets import claim_name, issue_fleet_credential, revoke_fleet
from marketplace.vault.identities import Terms
from marketplace.vault.models import EnrolledReplica, FleetCredential, Lease, Replica
from protocol.encoding import encode_base64url
from tests.marketplace.vault.factories import make_base, make_sold, want
from tests.marketplace.vault.registrar import Registrar

pytestmark = pytest.mark.django_db


def allow(pool: str = "small", *, network: str = "127.0.0.0/8", replicas: int = 2) -> str:
    return issue_fleet_credential(pool=pool, terms=Terms(make_base(), network), replicas=replicas)


def refused(answer: Any) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (401, "not_enrolled"), error
    return str(error["message"])


@pytest.fixture
def credential() -> str:
    services.bootstrap_platform_keys()
    return allow()


def member(client: Client, credential: str, name: str = "small-n1-0") -> Registrar:
    """Enrol and register one replica of the fleet."""
    replica = Registrar(client, name)
    assert replica.enrol(credential).status_code == 200
    assert replica.register().status_code == 200
    return replica


def test_a_replica_of_a_fleet_enrols_itself_under_the_terms_of_its_pool(client: Client, credential: str) -> None:
    replica = member(client, credential)
    row = EnrolledReplica.objects.get()
    assert (row.name, row.fleet_id, row.host, row.base_model.name) == ("small-n1-0", "small", "127.0.0.0/8", "tiny")
    assert replica.enrol(credential).status_code == 200  # every boot shows it again
    assert replica.register().status_code == 200
    assert Replica.objects.filter(gone_at__isnull=True).count() == 1
    assert credential.encode() not in bytes(FleetCredential.objects.get().credential_digest)


@pytest.mark.parametrize(
    "name", ["large-n1-0", "small", "small-0", "small-n1-x", "small-N1-0", "small-n1-00", "small-n1-12345", "r1"]
)
def test_a_name_of_another_pool_or_form_is_refused(client: Client, credential: str, name: str) -> None:
    assert "the credential is unknown" in refused(Registrar(client, name).enrol(credential))
    assert not EnrolledReplica.objects.exists()


def test_a_pool_whose_name_begins_with_another_ones_is_out_of_reach(client: Client, credential: str) -> None:
    other = allow("small-large")
    refused(Registrar(client, "small-large-n1-0").enrol(credential))
    refused(Registrar(client, "small-n1-0").enrol(other))
    assert not EnrolledReplica.objects.exists()


def test_a_claimed_name_is_its_identitys_alone(client: Client, credential: str) -> None:
    member(client, credential)
    assert "the credential is unknown" in refused(Registrar(client, "small-n1-0").enrol(credential))
    unsigned = Registrar(client, "small-n1-1")
    other = encode_base64url(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    refused(unsigned.enrol(credential, identity_public_key=other))
    assert EnrolledReplica.objects.count() == 1


def test_a_name_with_a_credential_of_its_own_is_no_fleets(client: Client, credential: str) -> None:
    own = Registrar(client, "small-n1-0")
    call_command("issue_replica_credential", "small-n1-0", base="tiny", host="127.0.0.1", stdout=(out := StringIO()))
    refused(own.enrol(credential))
    assert own.enrol(out.getvalue().strip()).status_code == 200
    refused(Registrar(client, "small-n1-0").enrol(credential))
    assert EnrolledReplica.objects.get().fleet_id is None


def test_no_more_replicas_than_allowed_live_at_once(client: Client, credential: str) -> None:
    member(client, credential)
    member(client, credential, "small-n1-1")
    third = Registrar(client, "small-n2-0")
    assert "may have 2 replicas at once" in refused(third.enrol(credential))
    assert EnrolledReplica.objects.count() == 2
    # The first one's node is lost: its place is free, and taken once alone.
    Replica.objects.filter(name="small-n1-0").update(last_seen_at=timezone.now() - timedelta(minutes=1))
    assert third.enrol(credential).status_code == 200
    assert third.register().status_code == 200
    back = Registrar(client, "small-n1-0")
    assert EnrolledReplica.objects.filter(name="small-n1-0").update(
        identity_public_key=back.identity.public_key().public_bytes_raw()
    )
    assert "may have 2 replicas at once" in refused(back.register())
    assert (
        Replica.objects.filter(name="small-n1-0", last_seen_at__gt=timezone.now() - timedelta(seconds=30)).count() == 0
    )


def test_names_that_never_boot_hold_no_place_for_ever(client: Client, credential: str) -> None:
    for slot in range(2):
        assert Registrar(client, f"small-n1-{slot}").enrol(credential).status_code == 200
    late = Registrar(client, "small-n2-0")
    refused(late.enrol(credential))
    EnrolledReplica.objects.update(enrolled_at=timezone.now() - timedelta(minutes=11))
    assert late.enrol(credential).status_code == 200


def test_another_base_address_or_name_in_the_place_of_an_address_is_refused(client: Client) -> None:
    services.bootstrap_platform_keys()
    credential = allow(network="127.1.0.0/16")
    replica = Registrar(client, "small-n1-0")
    assert replica.enrol(credential).status_code == 200
    refused(replica.register(replica.message(base="ee" * 32, url="http://127.1.0.1:8100")))
    for url in ("http://127.2.0.1:8100", "http://localhost:8100", "http://10.0.0.1:8100"):
        refused(replica.register(replica.message(url=url)))
    assert not Replica.objects.exists()
    assert replica.register(replica.message(url="http://127.1.0.1:8100")).status_code == 200


def test_a_network_of_a_fleet_widens_nothing_that_the_platform_allows(client: Client) -> None:
    services.bootstrap_platform_keys()
    replica = Registrar(client, "small-n1-0")
    assert replica.enrol(allow(network="0.0.0.0/0")).status_code == 200
    for url in ("http://8.8.8.8:80", "http://169.254.169.254:80"):
        refused(replica.register(replica.message(url=url)))
    assert not Replica.objects.exists()


def test_one_act_ends_a_pool_and_another_brings_it_back(client: Client, credential: str) -> None:
    replica = member(client, credential)
    stranger = Registrar(client, "r1")
    call_command("issue_replica_credential", "r1", base="tiny", host="127.0.0.1", stdout=(out := StringIO()))
    assert stranger.enrol(out.getvalue().strip()).status_code == 200
    assert stranger.register().status_code == 200
    sold = make_sold()
    boot = Replica.objects.get(name="small-n1-0")
    want(boot, sold.digest)
    services.release_key(replica=boot, digest=sold.digest, purpose="serve")
    call_command("revoke_fleet_credential", "small", stdout=(out := StringIO()))
    assert "revoked with 1 replicas. 1 leases ended" in out.getvalue()
    assert Lease.objects.get().revoked_at is not None
    assert [one.name for one in Replica.objects.filter(gone_at__isnull=True)] == ["r1"]
    refused(replica.enrol(credential))
    refused(Registrar(client, "small-n9-0").enrol(credential))
    assert client.post("/internal/v1/replicas/challenge", {"name": "small-n1-0"}, "application/json").status_code == 401

    newer = allow()
    refused(replica.enrol(credential))
    assert replica.enrol(newer).status_code == 200
    assert replica.register().status_code == 200


def test_a_name_that_was_revoked_alone_stays_revoked(client: Client, credential: str) -> None:
    replica = member(client, credential)
    call_command("revoke_replica", "small-n1-0", stdout=StringIO())
    refused(replica.enrol(credential))
    assert EnrolledReplica.objects.get().revoked_at is not None


def test_other_terms_replace_the_credential_and_hold_for_every_name(client: Client, credential: str) -> None:
    replica = member(client, credential)
    newer = issue_fleet_credential(
        pool="small", terms=Terms(make_base(), "127.0.0.1/32", ["aa" * 32], releases_per_hour=9), replicas=1
    )
    refused(Registrar(client, "small-n1-1").enrol(credential))
    row = EnrolledReplica.objects.get()
    assert (row.host, row.builds, row.releases_per_hour) == ("127.0.0.1/32", ["aa" * 32], 9)
    refused(replica.register())  # of no build that is allowed now
    evidence = {"kind": "build-digest", "digest": "aa" * 32}
    assert replica.register(replica.message(evidence=evidence)).status_code == 200
    assert "at once" in refused(Registrar(client, "small-n1-1").enrol(newer))


def test_staff_issue_a_fleet_credential_into_a_file(tmp_path: Path) -> None:
    make_base()
    file, out = tmp_path / "small", StringIO()
    options: dict[str, Any] = {"base": "tiny", "host": "10.0.0.0/8", "replicas": 3, "credential_file": file}
    call_command("issue_fleet_credential", "small", stderr=out, **options)
    first = file.read_text()
    assert first.startswith("ifc_") and file.stat().st_mode & 0o777 == 0o600
    call_command("issue_fleet_credential", "small", unless_issued=True, stderr=out, **options)
    assert file.read_text() == first
    for wrong, reason in (({"host": "10.0.0.1/8"}, "no network"), ({"replicas": 0}, "between one and")):
        with pytest.raises(CommandError, match=reason):
            call_command("issue_fleet_credential", "small", stderr=out, **(options | wrong))
    with pytest.raises(BadRequest, match="lower-case"):
        allow("Small")
    with pytest.raises(NotEnrolled, match="no pool"):
        revoke_fleet(pool="none")
    assert file.read_text() == first and claim_name
