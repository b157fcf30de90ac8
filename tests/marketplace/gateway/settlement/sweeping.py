"""The sweeper's world without a gateway: dispatched holds in every state, and replicas that only keep journals."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.db import connection
from django.utils import timezone

from billing.hotpath import HoldRequest
from billing.models import Hold, Usage
from billing.selectors import wallet
from billing.services import record_delivery_sync
from billing.statements import PLACE_HOLDS, place_parameters
from marketplace.accounts.models import Organization
from marketplace.vault.models import Replica
from tests.billing.support import hold_request, make_organization, place
from tests.database import as_superuser
from tests.marketplace.gateway.settlement.hostile_receipts import Claims, honest_claims, sign

ADAPTER, BASE = "cd" * 32, "ab" * 32
CREDIT = 100_000_000  # nano-dollars
COST = 5  # nano-dollars of 5 delivered tokens: 6·150 + 4·75 + 5·600 = 4,200 pico-dollars, rounded up


class JournalReplica:
    """A replica's registration, and its journal behind HTTP.

    `mode`: answer, refuse (500), nonsense, short (a state is missing), hang, drip (without an end).
    """

    def __init__(self, name: str = "journal") -> None:
        self.mode = "answer"
        self.states: dict[str, dict[str, Any]] = {}  # prediction id → state; others are unknown
        self.asked: list[list[str]] = []  # the batches
        self.key = Ed25519PrivateKey.generate()
        self.released = threading.Event()  # ends `hang` and `drip`
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.row = self.register(name)

    def register(self, name: str, **fields: Any) -> Replica:
        """Add a boot of this process under `name`."""
        return Replica.objects.create(
            name=name,
            url=self.url,
            base_fingerprint=BASE,
            hpke_public_key=b"\0" * 32,
            receipt_public_key=self.key.public_key().public_bytes_raw(),
            session_digest=b"\0" * 32,
            **fields,
        )

    def close(self) -> None:
        """Stop listening: from now on connections are refused."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def claims(self, hold: Hold, **changes: Any) -> Claims:
        """Return honest claims for a hold, in its class: 10 prompt, 4 cached and 5 completion tokens."""
        ids = {"prediction": hold.id, "replica": self.row.pk}
        honest = honest_claims(**ids, adapter=ADAPTER, base=BASE, latency_class=hold.latency_class)
        return honest | changes

    def finish(self, hold: Hold, token: str | None = None, **changes: Any) -> str:
        """Put a receipt into the journal, an honest one unless `token` is given."""
        receipt = sign(self.claims(hold, **changes), self.key, str(self.row.pk)) if token is None else token
        self.states[str(hold.id)] = {"state": "final", "receipt": receipt}
        return receipt

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        replica = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["predictions"]
                replica.asked.append([one["jti"] for one in asked])
                unknown = {"state": "unknown", "receipt": None}
                states = [replica.states.get(one["jti"], unknown) for one in asked]
                body = json.dumps({"states": states[1:] if replica.mode == "short" else states}).encode()
                if replica.mode == "hang":
                    replica.released.wait(60)
                    self.close_connection = True
                    return
                self.send_response(500 if replica.mode == "refuse" else 200)
                self.send_header("content-length", str(1 << 30 if replica.mode == "drip" else len(body)))
                self.end_headers()
                if replica.mode == "drip":
                    with suppress(OSError):
                        while not replica.released.wait(0.05):
                            self.wfile.write(b" ")
                    self.close_connection = True
                    return
                self.wfile.write(b"x" * len(body) if replica.mode == "nonsense" else body)

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


@contextmanager
def journal_replica(name: str = "journal") -> Iterator[JournalReplica]:
    """A registered replica that only answers about its journal."""
    replica = JournalReplica(name)
    try:
        yield replica
    finally:
        replica.close()


class Consumer:
    """An organization whose predictions are under way at a replica."""

    def __init__(self) -> None:
        self.organization = make_organization(CREDIT)
        self.creator: Organization = make_organization()

    def dispatched(self, replica: Replica, *, delivered: int | None = 5, **changes: Any) -> Hold:
        """A hold of a prediction that `replica` has; `delivered` is the gateway's verdict, None is no verdict."""
        request = place(self._request(replica, **changes))
        if delivered is not None:
            record_delivery_sync(prediction_id=request.prediction_id, attempt=1, tokens=delivered)
        return Hold.objects.get(pk=request.prediction_id)

    def many_dispatched(self, count: int, replica: Replica, *, delivered: int | None = 5, **changes: Any) -> list[Hold]:
        """Do what `dispatched` does for many predictions at once."""
        before = list(Hold.objects.values_list("pk", flat=True))
        requests = [self._request(replica, **changes) for _ in range(count)]
        with connection.cursor() as cursor:
            cursor.execute(PLACE_HOLDS, place_parameters(requests))
            if delivered is not None:
                sql = "SELECT billing_record_delivery(id, 1, %s) FROM billing_hold WHERE id <> ALL(%s)"
                cursor.execute(sql, [delivered, before])
        return list(Hold.objects.exclude(pk__in=before))

    def _request(self, replica: Replica, **changes: Any) -> HoldRequest:
        return hold_request(
            self.organization,
            self.creator,
            replica_id=replica.pk,
            adapter=ADAPTER,
            base=BASE,
            amount_nano_usd=10_000,
            **changes,
        )


def rewrite(hold_ids: list[uuid.UUID], **columns: datetime) -> None:
    """Move times of holds, which the database's rules freeze: as if the hold had been placed or judged then."""
    with as_superuser(), connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for name, value in columns.items():
            cursor.execute(f"UPDATE billing_hold SET {name} = %s WHERE id = ANY(%s)", [value, hold_ids])
        cursor.execute("SET session_replication_role = origin")


def ago(**units: float) -> datetime:
    """Return a time in the past."""
    return timezone.now() - timedelta(**units)


def assert_charged(consumer: Consumer, *costs: int) -> None:
    """These are all the charges, nothing is on hold, and the books would commit."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
    assert sorted(Usage.objects.values_list("cost_nano_usd", flat=True)) == sorted(costs)
    assert (wallet(consumer.organization).posted, wallet(consumer.organization).held) == (CREDIT - sum(costs), 0)
