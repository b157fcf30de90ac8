"""The gateway's benchmark: its replica signs what the platform believes, its clients count, its bars are judged."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks import results
from benchmarks.gateway import report
from benchmarks.gateway.load import Outcome, Plan, _main
from benchmarks.gateway.replica import BASE, Connection, Replica
from protocol.receipts import Grant, verify_receipt
from protocol.tickets import TICKET_HEADER, prediction_ticket, sign_ticket

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
BODY = b'{"model": "maker/thing"}'


def request(replica_id: uuid.UUID, prediction_id: uuid.UUID) -> bytes:
    claims = prediction_ticket(
        prediction_id=prediction_id,
        attempt=1,
        replica_id=replica_id,
        organization_id=uuid.uuid4(),
        adapter="cd" * 32,
        body=BODY,
        deadline=time.time() + 300,
        max_prompt_tokens=100,
        max_tokens=10,
        latency_class="batch",
        stop_at_grant=False,
    )
    ticket = sign_ticket(claims, Ed25519PrivateKey.generate(), kid="platform")
    return f"POST /v1/chat/completions HTTP/1.1\r\n{TICKET_HEADER}: {ticket}\r\n".encode()


def test_its_replica_signs_a_receipt_that_the_platform_believes_and_answers_a_ticket_once() -> None:
    replica, replica_id, prediction_id = Replica(KEY), uuid.uuid4(), uuid.uuid4()
    head = request(replica_id, prediction_id)
    status, answer = replica.answer(head, BODY)
    assert status == b"200 OK"
    token = json.loads(answer)["intarsia"]["receipt"]
    grant = Grant(prediction_id, 1, replica_id, "cd" * 32, BASE, 100, 10, "batch")
    assert verify_receipt(token, grant, {replica_id: KEY.public_key().public_bytes_raw()}).completion_tokens == 5
    assert replica.answer(head, BODY)[0].startswith(b"401")
    assert replica.answer(request(replica_id, uuid.uuid4()), b"{}")[0].startswith(b"401"), "another body"
    asked = json.dumps({"predictions": [{"jti": str(prediction_id)}, {"jti": "none"}]}).encode()
    states = json.loads(replica.answer(b"POST /admin/journal HTTP/1.1\r\n", asked)[1])["states"]
    assert [one["state"] for one in states] == ["final", "unknown"] and states[0]["receipt"] == token


@pytest.mark.asyncio
@pytest.mark.parametrize("per_second", [0.0, 200.0], ids=["closed loop", "at a rate"])
async def test_its_clients_count_answers_and_those_without_a_charge(per_second: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(Replica(KEY)), "127.0.0.1", 0)
    async with server:
        plan = Plan(
            ports=[server.sockets[0].getsockname()[1]],
            keys=["one", "two"],
            body=BODY.decode(),
            connections=4,
            seconds=0.1 if per_second else 60.0,
            per_second=per_second,
            requests=20,
        )
        outcome: Outcome = await _main(plan)
    assert outcome.statuses == {"200": 20} and outcome.unsettled == 20 and outcome.lost == 0
    assert len(outcome.latencies_ms) == 20 and min(outcome.latencies_ms) > 0


def result(**changes: Any) -> dict[str, Any]:
    rate = {"per_second": 1_200.0, "p50_ms": 90.0, "p99_ms": 200.0, "failed": 0, "cpu_ms": {"gateway": 0.9}}
    good = {
        "gateways": 2,
        "fdatasync_ms": 0.2,
        "wallets": rate,
        "one_wallet": rate,
        "latency": {"p50_ms": 3.0, "p95_ms": 4.0, "p99_ms": 5.0, "direct_p50_ms": 0.5, "added_p50_ms": 2.5},
        "running_out": {"200": 400, "402": 600, "charged": 400, "credit_left": 0, "held": 0, "price": 1_000},
        "killed": {"open_when_killed": 9, "open": 0, "overdrawn": 0},
    }
    return good | changes


def test_its_bars_depend_on_the_disk_and_name_what_is_missed() -> None:
    assert all(promise.kept for promise in report.promises(result()))
    slow = {"p50_ms": 7.0, "p95_ms": 9.0, "p99_ms": 9.0, "direct_p50_ms": 0.5, "added_p50_ms": 6.4}
    on_slow_disk = report.promises(result(latency=slow, fdatasync_ms=4.0))
    assert all(promise.kept for promise in on_slow_disk)
    missed = [promise.name for promise in report.promises(result(latency=slow)) if not promise.kept]
    assert missed == ["added latency at 100 per second, p50 ms"]
    text = results.markdown(report.parts(result()))
    assert "1,200" in text and "gateway 0.90" in text
