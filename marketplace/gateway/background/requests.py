"""Bodies, queries and keys of requests for work in the background, read at the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID, uuid5

import msgspec

from marketplace.gateway.background.shapes import id_of
from marketplace.gateway.errors import bad_request
from marketplace.gateway.http import Scope, idempotency_key_of

DEFAULT_LIMIT = 20


class NewBatch(msgspec.Struct):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None


class BatchToQuote(msgspec.Struct):
    """The body of `POST /v1/batches/quote`."""

    input_file_id: str


class NewPrediction(msgspec.Struct):
    """The body of `POST /v1/predictions`."""

    endpoint: str
    body: dict[str, Any]
    webhook: bool = False


@dataclass(frozen=True)
class Cursor:
    """The part of a list that is asked for."""

    after: UUID | None
    limit: int
    oldest_first: bool
    filters: dict[str, str]


def cursor_of(scope: Scope, prefix: str) -> Cursor:
    """Return `after`, `limit` and `order` of a query. Raises Refusal 400."""
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    limit, order = query.pop("limit", str(DEFAULT_LIMIT)), query.pop("order", "desc")
    if not limit.isascii() or not limit.isdigit() or len(limit) > 6:
        raise bad_request("`limit` must be a number.", "limit")
    if order not in ("asc", "desc"):
        raise bad_request("`order` must be asc or desc.", "order")
    after = query.pop("after", None)
    return Cursor(None if after is None else id_of(after, prefix, "after"), int(limit), order == "asc", query)


def id_for(scope: Scope, organization_id: UUID, what: str) -> UUID | None:
    """Return the id that the request's Idempotency-Key stands for in the organization; None without a key."""
    key = idempotency_key_of(scope)
    return None if key is None else uuid5(organization_id, f"{what}\0{key}")
