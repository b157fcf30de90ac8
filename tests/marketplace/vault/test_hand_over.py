"""A replica that drains has its conversations handed over: for itself, once, and where others can pull them."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from marketplace.vault import tasks
from marketplace.vault.models import Replica
from tests.marketplace.vault.factories import Booted, make_replica
from tests.marketplace.vault.registrar import post

pytestmark = pytest.mark.django_db


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The replicas for which the task was ordered."""
    names: list[str] = []
    task: Any = tasks.hand_over
    monkeypatch.setattr(task, "apply_async", lambda args, *, expires: names.append(*args))
    return names


def drains(client: Client, booted: Booted, token: str | None = None) -> Any:
    return post(client, f"replicas/{booted.replica.pk}/hand-over", {}, booted.session_token if token is None else token)


def test_each_boot_is_handed_over_once(client: Client, ordered: list[str]) -> None:
    first, other = make_replica("one"), make_replica("other")
    Replica.objects.update(transfer_url="https://127.0.0.1:9")
    assert [drains(client, first).json() for _ in range(2)] == [{"taken": True}, {"taken": False}]
    assert drains(client, other).json() == {"taken": True}
    assert ordered == ["one", "other"]


def test_nothing_is_handed_over_where_nobody_can_pull(client: Client, ordered: list[str]) -> None:
    assert drains(client, make_replica()).json() == {"taken": False}
    assert ordered == []


def test_a_replica_speaks_for_itself_alone(client: Client, ordered: list[str]) -> None:
    one, other = make_replica("one"), make_replica("other")
    Replica.objects.update(transfer_url="https://127.0.0.1:9")
    assert drains(client, one, token=other.session_token).status_code == 401
    assert drains(client, one, token="another").status_code == 401
    Replica.objects.filter(name="one").update(gone_at="2026-01-01T00:00:00Z")
    assert drains(client, one).status_code == 401
    assert ordered == []
