"""Verification: a replica's answer is recorded once, and waiting for a replica loses nothing."""

from __future__ import annotations

import pytest
from celery.exceptions import Retry
from django.core.cache import cache

from marketplace.catalog.models import Version
from marketplace.publishing import tasks
from marketplace.vault.errors import NoLiveReplica
from marketplace.vault.replica_client import Verification
from protocol.errors import ProtocolError
from tests.marketplace.catalog.factories import make_version

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_claims() -> None:
    cache.clear()


@pytest.fixture
def replica(monkeypatch):
    """The replica's answer, and how often it was asked."""

    class Replica:
        answer: Verification | Exception = Verification(ok=True, report={"rank": 8})
        asked = 0

    def verify(version: Version) -> Verification:
        Replica.asked += 1
        if isinstance(Replica.answer, Exception):
            raise Replica.answer
        return Replica.answer

    monkeypatch.setattr("marketplace.vault.replica_client.verify", verify)
    return Replica


def test_a_good_adapter_becomes_verified(replica) -> None:
    version = make_version(state="verifying")
    tasks.verify_version(str(version.id))
    tasks.verify_version(str(version.id))
    version.refresh_from_db()
    assert (version.state, version.report) == ("verified", {"rank": 8})
    assert replica.asked == 1


CONTRACT = {
    "instruction_tokens": 48,
    "max_tokens": 24,
    "output_schema": {"enum": ["yes", "no"]},
    "messages": "single",
    "system": "replace",
    "logprobs": "none",
}


def test_the_contract_in_a_report_becomes_the_versions_own(replica) -> None:
    replica.answer = Verification(ok=True, report={"rank": 8, "contract": CONTRACT})
    version = make_version(state="verifying")
    tasks.verify_version(str(version.id))
    version.refresh_from_db()
    assert (version.state, version.report, version.contract) == ("verified", {"rank": 8}, CONTRACT)


@pytest.mark.parametrize(
    "change", [{"instruction_tokens": -1}, {"max_tokens": 0}, {"messages": "many"}, {"output_schema": [1]}]
)
def test_a_contract_that_no_replica_may_report_verifies_nothing(replica, monkeypatch, change) -> None:
    replica.answer = Verification(ok=True, report={"contract": CONTRACT | change})
    monkeypatch.setattr(tasks.verify_version, "apply_async", lambda *_, **__: None)
    version = make_version(state="verifying")
    with pytest.raises((Retry, ProtocolError)):
        tasks.verify_version(str(version.id))
    version.refresh_from_db()
    assert (version.state, version.contract) == ("verifying", None)


def test_a_bad_adapter_becomes_refused_with_the_reason(replica) -> None:
    refusal = {"field": "lora_A", "rule": "all values finite", "message": "NaN"}
    replica.answer = Verification(ok=False, refusal=refusal)
    version = make_version(state="verifying")
    tasks.verify_version(str(version.id))
    version.refresh_from_db()
    assert (version.state, version.report) == ("refused", {"refusal": refusal})


@pytest.mark.parametrize("state", ["uploading", "published", "revoked", "refused"])
def test_only_what_is_verifying_is_verified(replica, state) -> None:
    version = make_version(state=state)
    tasks.verify_version(str(version.id))
    version.refresh_from_db()
    assert version.state == state and replica.asked == 0


def test_without_a_replica_it_tries_again_and_the_next_attempt_succeeds(replica, monkeypatch) -> None:
    replica.answer = NoLiveReplica("none")
    version = make_version(state="verifying")
    monkeypatch.setattr(tasks.verify_version, "apply_async", lambda *_, **__: None)
    with pytest.raises((Retry, NoLiveReplica)):
        tasks.verify_version(str(version.id))
    version.refresh_from_db()
    assert version.state == "verifying"
    replica.answer = Verification(ok=True, report={})
    tasks.verify_version(str(version.id))
    version.refresh_from_db()
    assert version.state == "verified"


def test_two_workers_do_not_verify_the_same_version_at_once(replica) -> None:
    version = make_version(state="verifying")
    cache.add(f"publishing:verifying:{version.id}", 1)
    tasks.verify_version(str(version.id))
    assert replica.asked == 0


def test_a_stuck_verification_is_queued_again_and_a_fresh_one_is_not(monkeypatch) -> None:
    queued: list[str] = []
    monkeypatch.setattr(tasks.verify_version, "delay", queued.append)
    stuck, fresh = make_version(state="verifying"), make_version(state="verifying")
    make_version(state="published")
    Version.objects.filter(pk=stuck.pk).update(state_changed_at="2020-01-01T00:00:00Z")
    tasks.resume_stuck_verifications()
    assert queued == [str(stuck.pk)] and str(fresh.pk) not in queued
