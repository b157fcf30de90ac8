"""An erased organization is forgotten by every replica; those that do not answer are asked again, and not for ever."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from marketplace.vault import replica_client, tasks
from marketplace.vault.errors import ReplicaCallFailed
from marketplace.vault.models import Replica
from marketplace.vault.replica_client import ReplicaAddress
from marketplace.vault.services import bootstrap_platform_keys
from protocol.admin import Forgotten
from tests.marketplace.vault.factories import make_replica

pytestmark = pytest.mark.django_db
ORGANIZATION = str(uuid.uuid4())


class World:
    """Replicas `away` do not answer. asked: names and scopes; again: what was put off, and for how long."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.asked: list[tuple[str, list[str]]] = []
        self.again: list[tuple[tuple[str, int], int]] = []

    def forget(self, address: ReplicaAddress, scopes: list[str], *, signer: object) -> Forgotten:
        name = address.url.removeprefix("http://").removesuffix(":9")
        self.asked.append((name, scopes))
        if name in self.away:
            raise ReplicaCallFailed("no answer")
        return Forgotten(scopes)

    def put_off(self, args: tuple[str, int], *, countdown: int) -> None:
        self.again.append((args, countdown))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    scripted = World()
    monkeypatch.setattr(replica_client, "forget", scripted.forget)
    task: Any = tasks.push_forgetting
    monkeypatch.setattr(task, "apply_async", scripted.put_off)
    bootstrap_platform_keys()
    for name in ("one", "two", "gone"):
        make_replica(name, url=f"http://{name}:9")
    Replica.objects.filter(name="gone").update(gone_at="2026-01-01T00:00:00Z")
    return scripted


def test_every_replica_that_is_not_gone_is_told_once(world: World) -> None:
    assert tasks.push_forgetting(ORGANIZATION) == 2
    assert sorted(world.asked) == [("one", [ORGANIZATION]), ("two", [ORGANIZATION])]
    assert not world.again


def test_a_replica_that_does_not_answer_is_asked_again_ever_later_and_not_for_ever(world: World) -> None:
    world.away = {"two"}
    attempt, waited = 1, 0
    while True:
        assert tasks.push_forgetting(ORGANIZATION, attempt) == 1
        if len(world.again) < attempt:
            break
        (organization, attempt), countdown = world.again[-1]
        assert organization == ORGANIZATION
        waited += countdown
    assert attempt == tasks.FORGET_ATTEMPTS and 3_000 < waited < 7_200
