"""Lists in OpenAI's form: a page of them, a cursor to the next. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from marketplace.gateway.errors import bad_request

MAX_PAGE = 100
DEFAULT_PAGE = 20


def text_of(query: bytes, name: str) -> str | None:
    """Return the last value of a query's parameter, None without one."""
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True).get(name)
    return values[-1] if values else None


def page_of(query: bytes) -> tuple[str | None, int]:
    """Return the cursor `after` and the `limit` of a list's query. Raises Refusal 400."""
    limit = text_of(query, "limit")
    limit = str(DEFAULT_PAGE) if limit is None else limit
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_PAGE:
        raise bad_request(f"`limit` must be an integer from 1 to {MAX_PAGE}.", "limit")
    return text_of(query, "after"), int(limit)


def listed(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a page of a list; `found` has one more than `limit` where more follow."""
    shown = found[:limit]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return {"object": "list", "data": shown, "has_more": len(found) > limit, **ends}
