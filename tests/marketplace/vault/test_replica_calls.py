"""The platform's calls to replicas, against a replica that may misbehave."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from marketplace.catalog.models import Version
from marketplace.vault import keys, replica_client, selectors, services, tasks
from marketplace.vault.errors import NoLiveReplica, ReplicaCallFailed
from marketplace.vault.models import Lease, Replica
from marketplace.vault.replica_client import ReplicaAddress
from protocol.admin import Refused
from protocol.tickets import TICKET_HEADER
from serving.platform.tickets import TicketVerifier
from tests.marketplace.vault.factories import make_replica, make_sold, want

pytestmark = pytest.mark.django_db


class FakeReplica(http.server.BaseHTTPRequestHandler):
    """Answers every call with `answers[action]`, after checking the ticket as a replica does."""

    answers: dict[str, tuple[int, bytes]] = {}  # noqa: RUF012
    calls: list[tuple[str, bytes]] = []  # noqa: RUF012
    tickets: TicketVerifier

    def do_POST(self) -> None:
        action = self.path.removeprefix("/admin/")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.tickets.verify(self.headers[TICKET_HEADER], body, action=action)
        self.calls.append((action, body))
        status, answer = self.answers[action]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Any]:
    services.bootstrap_platform_keys()
    handler: Any = type("Handler", (FakeReplica,), {"answers": {}, "calls": [], "tickets": TicketVerifier()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    replica = make_replica(url=f"http://127.0.0.1:{server.server_port}").replica
    handler.tickets.adopt(str(replica.pk), keys.ticket_public_keys())
    handler.replica, handler.address = replica, ReplicaAddress.of(replica)
    yield handler
    server.shutdown()
    server.server_close()


def test_verify_returns_what_the_replica_found(fake: Any) -> None:
    sold = make_sold(Version.State.VERIFYING)
    fake.answers["verify"] = (200, b'{"ok": true, "report": {"rank": 8}}')
    found = replica_client.verify(sold.version)
    assert found.ok and found.report == {"rank": 8}
    fake.answers["verify"] = (200, b'{"ok": false, "refusal": {"field": "f", "rule": "r", "message": "m"}}')
    found = replica_client.verify(sold.version)
    assert not found.ok and found.refusal == Refused("f", "r", "m")
    assert fake.calls[0] == ("verify", b'{"digest":"%b"}' % sold.digest.encode())


@pytest.mark.parametrize(
    "answer",
    [
        (503, b"{}"),
        (200, b"nonsense"),
        (200, b"[]"),
        (200, b'{"ok": true}'),
        (200, b'{"ok": false}'),
        (200, b" " * (2**20 + 1)),
    ],
)
def test_an_answer_outside_the_protocol_is_an_error_never_a_verdict(fake: Any, answer: tuple[int, bytes]) -> None:
    sold = make_sold(Version.State.VERIFYING)
    fake.answers["verify"] = answer
    with pytest.raises(ReplicaCallFailed):
        replica_client.verify(sold.version)


def test_without_a_live_replica_of_its_base_nothing_is_verified(fake: Any) -> None:
    sold = make_sold(Version.State.VERIFYING)
    Replica.objects.update(last_seen_at=timezone.now() - timedelta(seconds=11))
    with pytest.raises(NoLiveReplica):
        replica_client.verify(sold.version)
    assert fake.calls == [] and selectors.live_replicas() == []


def test_the_kill_switch_ends_leases_and_reaches_every_replica_even_if_one_is_dead(fake: Any) -> None:
    sold = make_sold()
    want(fake.replica, sold.digest)
    services.release_key(replica=fake.replica, digest=sold.digest, purpose="serve")
    make_replica("dead", url="http://127.0.0.1:9")
    make_replica("gone", url="http://127.0.0.1:9")
    Replica.objects.filter(name="gone").update(gone_at=timezone.now())
    fake.answers["revoke"] = (200, b'{"revoked": ["%b"], "aborted": 2}' % sold.digest.encode())
    assert tasks.push_revocation(str(sold.version.pk)) == 0
    assert fake.calls == [] and Lease.objects.get().revoked_at is None  # it is still on sale: nothing happens
    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.REVOKED)
    assert tasks.push_revocation(str(sold.version.pk)) == 1
    assert fake.calls == [("revoke", b'{"digests":["%b"]}' % sold.digest.encode())]
    assert Lease.objects.get().revoked_at is not None
