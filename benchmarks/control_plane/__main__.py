"""Measure what replicas cost web processes, database and Valkey while they do nothing but tell of themselves.

    python -m benchmarks.control_plane [--replicas 1000] [--gateways 1] [--seconds 30] [--out FOLDER]

Every replica has 2,000 resident adapters and 256 live leases. Then the kill switch: how long until all have heard.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import machine
from benchmarks.control_plane.report import report
from benchmarks.gateway.platform import Platform, platform, run
from devstack.state import REPOSITORY

SEED_SQL = """
WITH made AS (
    INSERT INTO vault_replica (id, name, url, base_fingerprint, hpke_public_key, receipt_public_key, evidence,
        session_digest, registered_at, last_seen_at, stats)
    SELECT gen_random_uuid(), 'simulated-' || number, 'http://127.0.0.1:9', repeat('ab', 32), ''::bytea, ''::bytea,
        '{}', digest, now(), now() + interval '1 hour', '{}'
    FROM unnest(%(digests)s::bytea[]) WITH ORDINALITY AS d (digest, number)
    RETURNING id),
released AS (
    INSERT INTO vault_release (id, creator_id, sequence, version_id, digest, replica_id, replica_key_fingerprint,
        purpose, released_at_us, previous_hash, entry_hash)
    SELECT gen_random_uuid(), v.creator, row_number() OVER (), v.id, v.package_digest, made.id, '', 'serve', 0,
        ''::bytea, ''::bytea
    FROM made, generate_series(1, %(leases)s), (
        SELECT v.id, v.package_digest, m.organization_id AS creator
        FROM catalog_version v JOIN catalog_model m ON m.id = v.model_id
        WHERE v.package_digest IS NOT NULL LIMIT 1) v
    RETURNING id)
INSERT INTO vault_lease (release_id) SELECT id FROM released
"""
# As a process of the platform, which has the key of seals: sessions of boots that are not sealed are none.
SEAL_BOOTS = """
import django
django.setup()
from django.db.models import QuerySet
from marketplace.vault.models import Replica
for row in QuerySet(Replica).filter(name__startswith="simulated-").values(*Replica.SEALED):
    QuerySet(Replica).filter(pk=row["id"]).update(seal=Replica(**row).sealed())
"""
WITHDRAW_SQL = "UPDATE catalog_version SET state = 'revoked', state_changed_at = now() WHERE package_digest = %s"
AGAIN_SQL = "UPDATE catalog_version SET state = 'published' WHERE package_digest = %s"


def seed(running: Platform, *, replicas: int, leases: int) -> str:
    """Put boots and their leases into the database; return the digest of the package that all hold."""
    digests = [hashlib.sha256(f"session-{number}".encode()).digest() for number in range(replicas)]
    with psycopg.connect(running.postgres.admin_url("intarsia"), autocommit=True) as connection:
        connection.execute(SEED_SQL, {"digests": digests, "leases": leases})
        run([sys.executable, "-c", SEAL_BOOTS], running.environment)
        connection.execute("ANALYZE")
        row = connection.execute("SELECT digest FROM vault_release LIMIT 1").fetchone()
    assert row is not None
    return str(row[0])


def measure(running: Platform, arguments: argparse.Namespace, digest: str, views_a_second: float) -> dict[str, Any]:
    """Return the CPU per replica-second by part at one rate of views, and whether all links held."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.control_plane.replicas"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as simulated:
        try:
            order = {
                "ports": running.gateways,
                "replicas": arguments.replicas,
                "residents": arguments.residents,
                "prefixes": arguments.prefixes,
                "views_a_second": views_a_second,
                "churn": 4,
                "digest": digest,
            }
            _ask(simulated, json.dumps(order))
            time.sleep(arguments.warm_up)
            before, views = running.cpu_seconds(), _ask(simulated, "counts")
            began = time.monotonic()
            time.sleep(arguments.seconds)
            after, views_after, took = running.cpu_seconds(), _ask(simulated, "counts"), time.monotonic() - began
            replica_seconds = arguments.replicas * took
            parts = {
                f"{part}_ms": 1e3 * (after[part] - before[part]) / replica_seconds
                for part in ("gateway", "postgres", "valkey")
            }
            withdrawn = time.time()
            with psycopg.connect(running.postgres.admin_url("intarsia"), autocommit=True) as connection:
                connection.execute(WITHDRAW_SQL, (digest,))
            heard = [at - withdrawn for at in _ask(simulated, "heard")["heard_at"]]
            with psycopg.connect(running.postgres.admin_url("intarsia"), autocommit=True) as connection:
                connection.execute(
                    "UPDATE catalog_version SET state = 'published' WHERE package_digest = %s", (digest,)
                )
            return {
                "replicas": arguments.replicas,
                "views_a_second": (views_after["views"] - views["views"]) / replica_seconds,
                "lost": views_after["lost"],
                **parts,
                "web_and_database_ms": parts["gateway_ms"] + parts["postgres_ms"],
                "withdrawal_p50_s": statistics.median(heard),
                "withdrawal_max_s": max(heard),
            }
        finally:
            simulated.kill()


def _ask(simulated: subprocess.Popen[str], what: str) -> dict[str, Any]:
    assert simulated.stdin is not None and simulated.stdout is not None
    simulated.stdin.write(what + "\n")
    simulated.stdin.flush()
    line = simulated.stdout.readline()
    if not line:
        raise RuntimeError("the simulated replicas ended; see their words above")
    answer: dict[str, Any] = json.loads(line)
    return answer


def main() -> int:
    """Measure, print, write; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--gateways", type=int, default=1, help="web processes, among which the links are shared out")
    parser.add_argument("--leases", type=int, default=256, help="live ones of each replica")
    parser.add_argument("--residents", type=int, default=2_000, help="adapters in the memory of each replica")
    parser.add_argument("--prefixes", type=int, default=2_000, help="conversations whose KV each replica holds")
    parser.add_argument("--seconds", type=float, default=30.0, help="measured, for each row")
    parser.add_argument("--warm-up", type=float, default=12.0, help="seconds before, more than between full views")
    parser.add_argument("--out", type=Path, help="folder of the results; by default that of this kind of machine")
    arguments = parser.parse_args()
    about = machine.describe()
    with platform(gateways=arguments.gateways, wallets=1, affordable=1) as running:
        digest = seed(running, replicas=arguments.replicas, leases=arguments.leases)
        rows = {
            "a view a second": measure(running, arguments, digest, 1.0),
            "four views a second": measure(running, arguments, digest, 4.0),
        }
    lines, fine = report(rows)
    print("\n".join(lines))
    folder = arguments.out or machine.RESULTS / machine.cpu_kind(about)
    result = {"machine": about, "gateways": arguments.gateways, "leases": arguments.leases, "rows": rows}
    print(machine.write_suite(folder, "control_plane", result))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
