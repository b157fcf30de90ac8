"""`GET` and `DELETE /v1/responses/{id}`, and the list of its input items."""

from __future__ import annotations

from typing import Any

import orjson

from marketplace.accounts.errors import NotFound
from marketplace.gateway.errors import bad_request, method_not_allowed
from marketplace.gateway.lists import listed, page_of, text_of
from marketplace.gateway.responses.request import response_id_of
from marketplace.gateway.responses.store import ResponseStore

RESPONSES_PATH = "/v1/responses"
_PARTS = {"": ("GET", "DELETE"), "input_items": ("GET",)}


async def kept_answer(store: ResponseStore, method: str, path: str, query: bytes) -> bytes:
    """Answer a request about a kept response. Raises Refusal 400, 404 or 405."""
    text, _, part = path.removeprefix(f"{RESPONSES_PATH}/").partition("/")
    if part not in _PARTS:
        raise NotFound(f"There is no {path}; see {RESPONSES_PATH}.")
    if method not in _PARTS[part]:
        raise method_not_allowed(path, *_PARTS[part])
    response_id = response_id_of(text)
    if method == "DELETE":
        await store.delete(response_id)
        return orjson.dumps({"id": text, "object": "response", "deleted": True})
    if part:
        found = await store.find(response_id)
        return orjson.dumps(_items(found["input"], query))
    if text_of(query, "stream") in ("true", "1"):
        raise bad_request("A kept response is not streamed again.", "stream")
    return orjson.dumps((await store.find(response_id))["response"])


def _items(items: list[dict[str, Any]], query: bytes) -> dict[str, Any]:
    """Return a page of the items, the last one first unless the query asks for `order=asc`."""
    after, limit = page_of(query)
    order = text_of(query, "order")
    order = "desc" if order is None else order
    if order not in ("asc", "desc"):
        raise bad_request("`order` must be asc or desc.", "order")
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise bad_request("`after` must be the id of an item.", "after")
    begin = 0 if after is None else ids.index(after) + 1
    return listed(ordered[begin : begin + limit + 1], limit)
