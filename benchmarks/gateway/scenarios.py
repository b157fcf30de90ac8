"""The measurements on a running platform: throughput, latency, a wallet that runs out, a gateway that is killed."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from benchmarks.gateway.load import Outcome, Plan
from benchmarks.gateway.platform import FLAT_MODEL, FLAT_NANO_USD, MODEL, Platform
from devstack.state import REPOSITORY

CONNECTIONS = 128
WARM_UP_SECONDS = 2.0
CLOSED_SECONDS = 90.0  # by when every hold of a killed gateway is closed


def body(model: str) -> str:
    """Return the request that every client sends."""
    question = [{"role": "user", "content": "What is the answer to everything, in one short sentence?"}]
    return json.dumps({"model": model, "messages": question, "max_tokens": 16})


def load(plan: Plan) -> Outcome:
    """Run a plan in a process of its own. Raises RuntimeError."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gateway.load"],
        input=msgspec.json.encode(plan),
        capture_output=True,
        cwd=REPOSITORY,
        timeout=plan.seconds + plan.warm_up + 120,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.decode()[-2000:])
    return msgspec.json.decode(done.stdout, type=Outcome)


@dataclass(frozen=True)
class Rate:
    """One run of closed-loop clients. `cpu_ms` is per answer, by role; the clients' own is under `load`."""

    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int  # answers other than 200, answers without a charge, and lost connections
    cpu_ms: dict[str, float]


def throughput(running: Platform, keys: list[str], *, seconds: float, connections: int = CONNECTIONS) -> Rate:
    """Measure as many predictions as two cores do, with clients that ask again as soon as they are answered."""
    plan = Plan(
        ports=running.gateways,
        keys=keys,
        body=body(MODEL),
        connections=connections,
        seconds=seconds,
        warm_up=WARM_UP_SECONDS,
    )
    settled = "SELECT count(*) FROM billing_usage"
    before, count = running.cpu_seconds(), running.query(settled)[0]
    outcome = load(plan)
    after, answers = running.cpu_seconds(), running.query(settled)[0] - count
    spent = {role: after[role] - before[role] for role in after} | {"load": outcome.cpu_seconds}
    return _rate(outcome, {role: 1e3 * seconds / max(1, answers) for role, seconds in spent.items()})


def peer_throughput(
    ports: list[int],
    key: str,
    model: str,
    cpu_seconds: Callable[[], float],
    *,
    seconds: float,
    connections: int,
) -> Rate:
    """Measure the same with another gateway. `cpu_seconds` returns its CPU time so far."""
    plan = Plan(
        ports=ports,
        keys=[key],
        body=body(model),
        connections=connections,
        seconds=seconds,
        warm_up=WARM_UP_SECONDS,
        settled="",
    )
    before = cpu_seconds()
    outcome = load(plan)
    answers = max(1, outcome.statuses.get("200", 0)) * (1 + WARM_UP_SECONDS / seconds)
    return _rate(outcome, {"peer": 1e3 * (cpu_seconds() - before) / answers})


def _rate(outcome: Outcome, cpu_ms: dict[str, float]) -> Rate:
    good = outcome.statuses.get("200", 0)
    latencies = sorted(outcome.latencies_ms) or [0.0]
    return Rate(
        per_second=round(good / max(outcome.seconds, 1e-9), 1),
        p50_ms=statistics.median(latencies),
        p99_ms=latencies[len(latencies) * 99 // 100],
        failed=sum(outcome.statuses.values()) - good + outcome.unsettled + outcome.lost,
        cpu_ms={role: round(value, 3) for role, value in cpu_ms.items()},
    )


def added_latency(running: Platform, *, per_second: float, seconds: float) -> dict[str, float]:
    """Return p50, p95 and p99 in milliseconds of predictions at a rate, and the p50 of the replica asked directly."""
    plan = Plan(
        ports=running.gateways,
        keys=running.keys,
        body=body(MODEL),
        connections=32,
        seconds=seconds,
        warm_up=WARM_UP_SECONDS,
        per_second=per_second,
    )
    through = sorted(load(plan).latencies_ms)
    direct = load(msgspec.structs.replace(plan, ports=[running.replica_port], settled="")).latencies_ms
    return {
        "p50_ms": statistics.median(through),
        "p95_ms": through[len(through) * 95 // 100],
        "p99_ms": through[len(through) * 99 // 100],
        "direct_p50_ms": statistics.median(direct),
        "added_p50_ms": round(statistics.median(through) - statistics.median(direct), 3),
    }


def running_out(running: Platform, *, parallel: int) -> dict[str, int]:
    """Ask `parallel` times at once on the wallet that has credit for less; return answers and what the books say."""
    plan = Plan(
        ports=running.gateways,
        keys=[running.poor],
        body=body(FLAT_MODEL),
        connections=parallel,
        seconds=60,
        requests=parallel,
    )
    statuses = load(plan).statuses
    return {"200": statuses.get("200", 0), "402": statuses.get("402", 0), **_poor_books(running)}


def killed(running: Platform, *, parallel: int) -> dict[str, int]:
    """Kill a gateway with predictions in flight, and wait until the other one has closed what it left.

    Its holds are all the credit that it had taken: they are charged or given back, and nothing is overdrawn.
    """
    name = f"gateway-{len(running.gateways) - 1}"
    port = running.gateways.pop()
    plan = Plan(ports=[port], keys=running.keys, body=body(MODEL), connections=parallel, seconds=4)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(plan))
    process.stdin.close()
    time.sleep(2)
    running.stop(name, signal.SIGKILL)
    process.wait(60)
    left = "SELECT count(*) FROM billing_hold WHERE state = 'open' AND delivered_tokens IS NULL"
    opened, deadline = running.query(left)[0], time.monotonic() + CLOSED_SECONDS
    while running.query(left)[0] and time.monotonic() < deadline:
        time.sleep(0.2)
    overdrawn = "SELECT count(*) FROM billing_account WHERE kind = 'customer_credit' AND posted - held < 0"
    return {"open_when_killed": opened, "open": running.query(left)[0], "overdrawn": running.query(overdrawn)[0]}


def _poor_books(running: Platform) -> dict[str, int]:
    sql = (
        "SELECT a.posted, a.held, (SELECT count(*) FROM billing_usage u WHERE u.organization_id = a.organization_id)"
        " FROM billing_account a JOIN accounts_organization o ON o.id = a.organization_id"
        " WHERE a.kind = 'customer_credit' AND o.slug = 'poor'"
    )
    posted, held, usage = running.query(sql)
    return {"charged": usage, "credit_left": posted, "held": held, "price": FLAT_NANO_USD}
