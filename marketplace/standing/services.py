"""The write of this package: every listed model's standing, from the evidence of this moment."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.utils import timezone

from marketplace.standing.evidence import Found, read_evidence
from marketplace.standing.formula import quality_low, score
from marketplace.standing.locks import lock_places
from marketplace.standing.shelf import Candidate, choose_shelf

# A listing that two transactions changed at once may lack its row, or have one too many.
_LIST = "SELECT catalog_list_models(ARRAY(SELECT id FROM catalog_model))"
_LISTED = """
SELECT s.model_id, m.organization_id, s.listed_at FROM catalog_standing s JOIN catalog_model m ON m.id = s.model_id
"""
_COLUMNS = {
    "place": "integer",
    "score": "double precision",
    "quality_low": "double precision",
    "quality_rows": "integer",
    "served": "bigint",
    "lost": "bigint",
    "payers": "integer",
    "weeks": "integer",
    "shelf": "smallint",
}
_OLD, _NEW = (", ".join(f"{row}.{name}" for name in _COLUMNS) for row in ("s", "new"))
_WRITE = f"""
UPDATE catalog_standing s SET ({", ".join(_COLUMNS)}) = ({_NEW})
FROM unnest(%(model_id)s::uuid[], {", ".join(f"%({name})s::{kind}[]" for name, kind in _COLUMNS.items())})
    AS new (model_id, {", ".join(_COLUMNS)})
WHERE s.model_id = new.model_id
    AND ({_OLD}) IS DISTINCT FROM ({_NEW})
"""


@transaction.atomic
def rank_models(*, now: datetime | None = None) -> int:
    """Give every listed model its score and place. Returns how many standings changed; idempotent.

    Calls take turns, also across processes. A model that is published meanwhile has its place by the next call.
    """
    now = now or timezone.now()
    lock_places()
    with connection.cursor() as cursor:
        cursor.execute(_LIST)
        cursor.execute(_LISTED)
        listed: list[tuple[UUID, UUID, datetime]] = cursor.fetchall()
        rows = _standings(listed, read_evidence(now=now), now)
        cursor.execute(_WRITE, {name: [row[name] for row in rows] for name in ("model_id", *_COLUMNS)})
        return cursor.rowcount


def _standings(
    listed: list[tuple[UUID, UUID, datetime]], evidence: dict[UUID, Found], now: datetime
) -> list[dict[str, Any]]:
    """Return the rows of listed models, in the order of their places. Of equal scores, the older listing is first."""
    scored = []
    for model_id, organization_id, listed_at in listed:
        found = evidence.get(model_id, Found())
        points = score(found.evidence)
        scored.append((points, found, Candidate(model_id, organization_id, listed_at, points.payers)))
    scored.sort(key=lambda one: (-one[0].total, one[2].listed_at, one[2].model_id))
    shelf = choose_shelf((one for _points, _found, one in scored), now=now)
    return [
        {
            "model_id": one.model_id,
            "place": place,
            "score": points.total,
            "quality_low": quality_low(found.evidence.evaluation),
            "quality_rows": found.evidence.evaluation[1] if found.evidence.evaluation else None,
            "served": found.evidence.served,
            "lost": found.evidence.lost,
            "payers": points.payers,
            "weeks": found.weeks,
            "shelf": shelf.get(one.model_id),
        }
        for place, (points, found, one) in enumerate(scored, 1)
    ]
