"""Hints go over the links that web processes hold, else by a call; the keys are ordered first, and for this replica."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone
from redis import Redis

from marketplace.vault import hints, replica_client
from marketplace.vault.models import ReleaseOrder, Replica
from protocol.fleet_relay import FLEET_CHANNEL, decode_relay
from tests.marketplace.vault.factories import make_replica, make_sold

pytestmark = pytest.mark.django_db


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The replicas that were called, and with what."""
    calls: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        replica_client, "prefetch", lambda address, digests: calls.append((str(address.replica_id), list(digests)))
    )
    return calls


def hint(replica: Replica) -> str:
    digest = make_sold().digest
    hints.hint(replica, [digest])
    found = ReleaseOrder.objects.get()
    assert (found.replica_id, found.digest, found.kind) == (replica.pk, digest, ReleaseOrder.Kind.PREFETCH)
    return digest


def test_a_hint_goes_to_the_processes_that_hold_links(called: list[Any]) -> None:
    replica = make_replica().replica
    with Redis.from_url(settings.ENV.valkey_url) as valkey, valkey.pubsub() as channel:
        channel.subscribe(FLEET_CHANNEL)
        assert channel.get_message(timeout=5) is not None  # subscribed
        digest = hint(replica)
        while (message := channel.get_message(timeout=5)) is not None:
            found = [(one.replica_id, one.digests) for one in decode_relay(message["data"]).hints]
            if found == [(str(replica.pk), (digest,))]:
                break
        else:
            pytest.fail("the hint did not arrive")
    assert called == []


def test_without_valkey_or_a_link_the_replica_is_called(called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    replica = make_replica().replica
    Replica.objects.filter(pk=replica.pk).update(left_at=timezone.now())
    replica.refresh_from_db()
    digest = hint(replica)
    monkeypatch.setattr(hints, "_say", lambda replica, digests: False)
    hints.hint(make_replica("other").replica, [digest])
    assert [digests for _, digests in called] == [[digest], [digest]]
    hints.hint(replica, [])
    assert len(called) == 2
