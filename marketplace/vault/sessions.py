"""Sessions of replicas: a lease lives while its session is heard of, unless it was ended before.

The statements are set-based, for as many replicas as one process hears of: the web views run them for one replica that
sends heartbeats, the gateway for all replicas whose links it holds, once a second. What a statement costs follows from
what changed, not from the leases that live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from django.db import connection, transaction

from marketplace.vault.errors import SessionRefused
from marketplace.vault.models import PlatformKey, Replica
from marketplace.vault.policies import ENDED_STATES, WHY_LENT
from protocol.replicas import LEASE_SECONDS

TOKEN_RATE = "tokens_per_second"  # beside a replica's own figures
# How long what ended is told: a replica that hears nothing for so long has dropped every lease by itself.
TOLD_SECONDS = 3 * LEASE_SECONDS

# A session that was not heard of while a lease lasts is over, and so are its leases: they do not rise again.
RENEW_SQL = """
UPDATE vault_replica r SET last_seen_at = now(), left_at = NULL, stats = coalesce(b.stats::jsonb, r.stats)
FROM unnest(%(replicas)s::uuid[], %(stats)s::text[]) AS b (id, stats)
WHERE r.id = b.id AND r.gone_at IS NULL AND r.last_seen_at > now() - make_interval(secs => %(lease)s)
RETURNING r.id
"""
RETURNED_SQL = """
UPDATE vault_lease l SET expires_at = now()
FROM vault_release r, unnest(%(replicas)s::uuid[], %(releases)s::uuid[]) AS b (replica, release)
WHERE l.release_id = b.release AND r.id = b.release AND r.replica_id = b.replica AND l.expires_at IS NULL
"""
# Every replica hears of these, whether it holds the key or asks for it at this moment.
WITHDRAWN_SQL = """
SELECT package_digest FROM catalog_version
WHERE state = ANY(%(ended)s) AND state_changed_at > now() - make_interval(secs => %(told)s)
  AND package_digest IS NOT NULL
"""
# Leases that somebody ended, and those whose version's state allows their purpose no more.
ENDED_SQL = """
SELECT r.replica_id, r.id FROM vault_lease l JOIN vault_release r ON r.id = l.release_id
WHERE l.revoked_at > now() - make_interval(secs => %(told)s) AND r.replica_id = ANY(%(replicas)s)
UNION
SELECT r.replica_id, r.id FROM catalog_version v
JOIN vault_release r ON r.version_id = v.id JOIN vault_lease l ON l.release_id = r.id
WHERE v.state_changed_at > now() - make_interval(secs => %(told)s) AND l.expires_at IS NULL
  AND r.replica_id = ANY(%(replicas)s)
  AND NOT EXISTS (
      SELECT 1 FROM unnest(%(purposes)s::text[], %(states)s::text[]) AS a (purpose, state)
      WHERE a.purpose = r.purpose AND a.state = v.state)
"""
CONFIRMED_SQL = """
UPDATE vault_lease l SET confirmed_at = now()
FROM vault_release r, unnest(%(replicas)s::uuid[], %(digests)s::text[]) AS b (replica, digest)
WHERE l.release_id = r.id AND r.replica_id = b.replica AND r.digest = b.digest AND l.confirmed_at IS NULL
"""
# A connection that its replica closed: another boot of the name need not wait.
LEFT_SQL = "UPDATE vault_replica SET left_at = now() WHERE id = %s AND gone_at IS NULL AND session_digest = %s"
TICKET_KEYS_SQL = f"""
SELECT {", ".join(PlatformKey.SEALED)}, seal FROM vault_platformkey WHERE purpose = 'ticket' AND retired_at IS NULL
"""
SESSION_SQL = f"""
SELECT {", ".join(Replica.SEALED)}, seal FROM vault_replica WHERE session_digest = %s AND gone_at IS NULL
"""

_PURPOSES, _STATES = zip(*((purpose, state) for purpose, states in WHY_LENT.items() for state in states), strict=True)
ALLOWED: dict[str, Any] = {
    "purposes": list(_PURPOSES),
    "states": list(_STATES),
    "ended": sorted(ENDED_STATES),
    "lease": LEASE_SECONDS,
    "told": TOLD_SECONDS,
}


@dataclass(frozen=True, slots=True)
class Ended:
    """What a replica must let go: digests withdrawn for good, and leases (release ids) that are over."""

    revoked: list[str]
    leases: list[str]


def record_heartbeat(*, replica: Replica, stats: Mapping[str, Any], returned: Sequence[UUID] = ()) -> Ended:
    """Note that `replica` lives, which renews its leases, and which of them it gave back; return those that ended.

    Raises SessionRefused for a session that was silent for too long: its leases are over.
    """
    now = datetime.now(tz=replica.last_seen_at.tzinfo)
    figures = {**stats, TOKEN_RATE: token_rate(replica.stats, stats, (now - replica.last_seen_at).total_seconds())}
    about = ALLOWED | {"replicas": [replica.pk], "stats": [orjson.dumps(figures).decode()]}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(RENEW_SQL, about)
        if cursor.fetchone() is None:
            raise SessionRefused("this session was silent for too long; register again")
        if returned:
            cursor.execute(RETURNED_SQL, {"replicas": [replica.pk] * len(returned), "releases": list(returned)})
        cursor.execute(WITHDRAWN_SQL, about)
        revoked = sorted(digest for (digest,) in cursor.fetchall())
        cursor.execute(ENDED_SQL, about)
        return Ended(revoked, sorted(str(release) for _, release in cursor.fetchall()))


def token_rate(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> float:
    """Return the tokens a second between two heartbeats; a replica's figures may be any JSON."""
    now_done, before_done = _tokens(now), _tokens(before)
    if now_done is None or before_done is None or seconds <= 0:
        return 0.0
    return round(max(0, now_done - before_done) / seconds, 1)


def _tokens(stats: Mapping[str, Any]) -> int | None:
    generated, prompt = stats.get("generated_tokens"), stats.get("prompt_tokens")
    return generated + prompt if isinstance(generated, int) and isinstance(prompt, int) else None
