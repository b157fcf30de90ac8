"""The rows that the audit reads: plain SQL over the tables, nothing of the project's own code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

_HOLDS = """
SELECT h.id::text, encode(h.request_hash, 'hex') AS body_hash, h.state, h.amount_nano_usd AS amount,
       h.cost_nano_usd AS cost, h.account_id, h.class_bps,
       (SELECT coalesce(sum(basis_points), 0)::int FROM billing_splitpart p
        WHERE p.split_id = h.split_id AND p.organization_id IS NOT NULL) AS payees_bps,
       h.monthly_allowance_nano_usd + h.introductory_allowance_nano_usd AS allowance,
       h.input_micro_usd_per_mtok AS input_price, h.cached_input_micro_usd_per_mtok AS cached_price,
       h.output_micro_usd_per_mtok AS output_price, h.per_prediction_nano_usd AS flat_price,
       h.attempt, h.replica_id::text, h.adapter, h.base, h.max_prompt_tokens, h.max_tokens, h.delivered_tokens,
       h.close_reason, v.package_digest AS sold_adapter, b.fingerprint AS sold_base,
       extract(epoch FROM h.created_at)::float8 AS created, extract(epoch FROM h.closed_at)::float8 AS closed
FROM billing_hold h
JOIN catalog_version v ON v.id = h.version_id
JOIN catalog_model m ON m.id = v.model_id
JOIN catalog_basemodel b ON b.id = m.base_model_id
WHERE h.created_at >= to_timestamp(%s)
"""
_USAGE = """
SELECT prediction_id::text AS id, prompt_tokens AS prompt, cached_tokens AS cached, completion_tokens AS completion,
       cost_nano_usd AS cost, receipt,
       replica_id::text, finish_reason
FROM billing_usage WHERE created_at >= to_timestamp(%s)
"""
_ENTRIES = """
SELECT t.id, t.kind, t.reference, t.corrects_id, e.account_id, a.kind AS account, sum(e.amount)::bigint AS amount
FROM billing_ledgertransaction t
JOIN billing_entry e ON e.transaction_id = t.id
JOIN billing_account a ON a.id = e.account_id
GROUP BY t.id, e.account_id, a.kind
"""
_CORRECTIONS = """
SELECT id::text, prediction_id::text AS prediction, amount_nano_usd AS amount, transaction_id FROM billing_correction
WHERE amount_nano_usd > 0
"""
_PAYOUTS = """
SELECT p.id::text, p.state, p.amount_cents AS cents, o.slug = 'faults' AS is_makers
FROM billing_payout p JOIN accounts_organization o ON o.id = p.organization_id
"""
_REPLICAS = "SELECT id::text, name, receipt_public_key, base_fingerprint, registered_at FROM vault_replica"
_ACCOUNTS = "SELECT id, kind, posted, held FROM billing_account"
_INCIDENTS = "SELECT kind, subject, detail FROM billing_incident WHERE opened_at >= to_timestamp(%s)"


@dataclass(frozen=True)
class Rows:
    """One snapshot of the books."""

    holds: list[dict[str, Any]]
    usage: list[dict[str, Any]]
    entries: list[dict[str, Any]]
    replicas: list[dict[str, Any]]
    accounts: list[dict[str, Any]]
    incidents: list[dict[str, Any]]
    corrections: list[dict[str, Any]]
    payouts: list[dict[str, Any]]


def read_rows(database_url: str, since: float) -> Rows:
    """Read holds, usage and incidents since `since` (unix seconds), and the whole ledger, in one snapshot."""
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

        def fetch(sql: str, *parameters: float) -> list[dict[str, Any]]:
            return connection.execute(sql, parameters).fetchall()  # type: ignore[arg-type]

        return Rows(
            fetch(_HOLDS, since),
            fetch(_USAGE, since),
            fetch(_ENTRIES),
            fetch(_REPLICAS),
            fetch(_ACCOUNTS),
            fetch(_INCIDENTS, since),
            fetch(_CORRECTIONS),
            fetch(_PAYOUTS),
        )


def open_payouts(database_url: str) -> int:
    """Count the payouts on their way; raises OperationalError while the database is away."""
    with psycopg.connect(database_url, connect_timeout=5) as connection:
        row = connection.execute(
            "SELECT count(*) FROM billing_payout WHERE state NOT IN ('paid', 'returned')"
        ).fetchone()
        assert row is not None
        return int(row[0])


def busiest_replica(database_url: str) -> str | None:
    """Return the name of the replica with most open holds, None without any or while the database is away."""
    sql = """
    SELECT r.name FROM billing_hold h JOIN vault_replica r ON r.id = h.replica_id WHERE h.state = 'open'
    GROUP BY r.name ORDER BY count(*) DESC LIMIT 1
    """
    try:
        with psycopg.connect(database_url, connect_timeout=5) as connection:
            row = connection.execute(sql).fetchone()
    except psycopg.OperationalError:
        return None
    return str(row[0]) if row else None


def open_holds(database_url: str, since: float) -> int:
    """Count the holds since `since` that are still open; raises OperationalError while the database is away."""
    with psycopg.connect(database_url, connect_timeout=5) as connection:
        row = connection.execute(
            "SELECT count(*) FROM billing_hold WHERE state = 'open' AND created_at >= to_timestamp(%s)", (since,)
        ).fetchone()
        assert row is not None
        return int(row[0])
