"""A withdrawn version: which replicas confirmed that its key is gone, and which are named because they did not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.vault import replica_client, services, tasks
from marketplace.vault.errors import ReplicaCallFailed
from marketplace.vault.holders import holders
from marketplace.vault.models import Lease, Replica
from marketplace.vault.replica_client import ReplicaAddress
from protocol.admin import Revocation
from tests.marketplace.vault.factories import Sold, make_replica, make_sold

pytestmark = pytest.mark.django_db


class Replicas:
    """Replicas by name: the `honest` confirm, the `vague` answer without naming the package, others do not answer."""

    def __init__(self) -> None:
        self.honest: set[str] = set()
        self.vague: set[str] = set()
        self.asked: list[str] = []

    def revoke(self, address: ReplicaAddress, digests: list[str], *, signer: object) -> Revocation:
        name = address.url.removeprefix("http://").removesuffix(":9")
        self.asked.append(name)
        if name in self.vague:
            return Revocation([], aborted=0)
        if name not in self.honest:
            raise ReplicaCallFailed("no answer")
        return Revocation(digests, aborted=0)


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    scripted = Replicas()
    monkeypatch.setattr(replica_client, "revoke", scripted.revoke)
    return scripted


def lend(sold: Sold, name: str, *, seconds: float = 30) -> Lease:
    """Lend the key to a new replica: a row of the log, and a lease that ends in `seconds`."""
    replica = make_replica(name, url=f"http://{name}:9").replica
    release = services._append_release(sold.version, replica, "serve")
    return Lease.objects.create(release=release, expires_at=timezone.now() + timedelta(seconds=seconds))


def withdraw(sold: Sold) -> None:
    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.REVOKED, state_changed_at=timezone.now())


def facts(sold: Sold) -> dict[str, tuple[bool, bool]]:
    """Return by replica: whether it confirmed, and whether its lease is over."""
    return {one.replica.name: (one.confirmed, one.lease_over) for one in holders(version=sold.version)}


def test_a_replica_that_did_not_confirm_is_named_with_its_lease_until_it_confirms(replicas: Replicas) -> None:
    sold = make_sold()
    lend(sold, "honest")
    stopped = lend(sold, "stopped")
    replicas.honest.add("honest")
    withdraw(sold)
    assert tasks.push_revocation(str(sold.version.pk)) == 1
    assert facts(sold) == {"honest": (True, False), "stopped": (False, False)}
    assert {one.replica.name: one.lease_ends_at for one in holders(version=sold.version)}["stopped"] == (
        stopped.expires_at
    )

    # It is asked again, and only it.
    replicas.asked.clear()
    assert tasks.confirm_revocations() == 0 and replicas.asked == ["stopped"]
    replicas.honest.add("stopped")
    assert tasks.confirm_revocations() == 1 and facts(sold)["stopped"] == (True, False)
    replicas.asked.clear()
    assert tasks.confirm_revocations() == 0 and replicas.asked == []


def test_a_lease_that_is_over_confirms_nothing(replicas: Replicas) -> None:
    """A stopped process holds the plaintext after its lease, and after the platform has marked it as gone."""
    sold = make_sold()
    lend(sold, "stopped", seconds=-2)
    withdraw(sold)
    assert tasks.push_revocation(str(sold.version.pk)) == 0
    assert facts(sold) == {"stopped": (False, True)}
    Replica.objects.update(gone_at=timezone.now())
    assert facts(sold) == {"stopped": (False, True)}


def test_an_answer_that_does_not_name_the_package_confirms_nothing(replicas: Replicas) -> None:
    sold = make_sold()
    lend(sold, "vague")
    replicas.vague.add("vague")
    withdraw(sold)
    assert tasks.push_revocation(str(sold.version.pk)) == 0
    assert facts(sold) == {"vague": (False, False)}
    assert Lease.objects.get().revoked_at is not None and Lease.objects.get().confirmed_at is None


def test_a_version_on_sale_is_asked_about_nowhere_and_an_old_withdrawal_no_more(replicas: Replicas) -> None:
    sold = make_sold()
    lend(sold, "r")
    assert tasks.confirm_revocations() == 0 and replicas.asked == []
    withdraw(sold)
    Version.objects.update(state_changed_at=timezone.now() - tasks.ASKED_AGAIN - timedelta(seconds=1))
    assert tasks.confirm_revocations() == 0 and replicas.asked == []
    assert facts(sold) == {"r": (False, False)}


def test_a_boot_that_died_is_named_until_its_lease_is_over_then_the_next_boot_stands_for_it(replicas: Replicas) -> None:
    sold = make_sold()
    lease = lend(sold, "crashed")
    Replica.objects.update(gone_at=timezone.now())
    make_replica("crashed")
    withdraw(sold)
    assert facts(sold) == {"crashed": (False, False)}
    Lease.objects.filter(pk=lease.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert facts(sold) == {}


def test_a_replica_that_left_is_named_for_a_day(replicas: Replicas) -> None:
    sold = make_sold()
    lend(sold, "left", seconds=-3600)
    lend(sold, "long-ago", seconds=-25 * 3600)
    Replica.objects.update(gone_at=timezone.now())
    assert facts(sold) == {"left": (False, True)}
