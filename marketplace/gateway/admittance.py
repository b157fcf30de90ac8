"""Admission to a model on the hot path: its licence is accepted, and its creator has let the customer in.

A model without either condition costs nothing here. With one, an answer is at most a second old, so that a revoked
customer is refused, and an accepted licence counts, within two. The creator's own organization is always admitted.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from psycopg_pool import AsyncConnectionPool

from marketplace.access.policies import Admission
from marketplace.accounts.errors import NotAllowed, Refusal
from marketplace.gateway.cache import TtlCache
from protocol.names import ModelName

# The digest is `catalog.licences.terms_digest`.
_ADMISSION_SQL = """
SELECT NOT m.gated OR EXISTS (
        SELECT FROM access_accessrequest r
        WHERE r.model_id = m.id AND r.organization_id = %(organization)s AND r.state = 'granted'),
    NOT m.licence_required OR EXISTS (
        SELECT FROM access_licenceacceptance a
        WHERE a.model_id = m.id AND a.organization_id = %(organization)s
            AND a.terms_id = encode(sha256(convert_to(m.licence || E'\\n' || m.licence_text, 'UTF8')), 'hex'))
FROM catalog_model m WHERE m.id = %(model)s
"""
_MESSAGES = {
    "access_not_granted": "lets customers in one by one, and has not let yours in. Ask for access",
    "licence_not_accepted": "asks that your organization accepts its licence first. Read and accept it",
}


class Admittance:
    """Reads admissions for one gateway process."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._known: TtlCache[tuple[uuid.UUID, uuid.UUID], Admission] = TtlCache(seconds=1, size=10_000)

    async def require(
        self, database: AsyncConnectionPool[Any], *, model_id: uuid.UUID, organization_id: uuid.UUID, name: ModelName
    ) -> None:
        """Raise Refusal 403 (`access_not_granted`, `licence_not_accepted`) with the page to go to, unless admitted."""
        key = (model_id, organization_id)
        admission = await self._known.get(key, lambda: self._load(database, *key))
        if admission.refusal_code is not None:
            raise _refusal(admission.refusal_code, name)

    async def _load(
        self, database: AsyncConnectionPool[Any], model_id: uuid.UUID, organization_id: uuid.UUID
    ) -> Admission:
        values = {"model": model_id, "organization": organization_id}
        async with database.connection() as connection:
            found = await (await connection.execute(_ADMISSION_SQL, values)).fetchone()
        return Admission(*found) if found else Admission(access_granted=False)


def _refusal(code: str, name: ModelName) -> Refusal:
    page = f"{settings.ENV.public_url}/models/{name.listing}#admission"
    return NotAllowed(f"{name.listing} {_MESSAGES[code]}: {page} Nothing was charged.", code=code, field="model")
