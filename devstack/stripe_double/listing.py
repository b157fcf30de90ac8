"""Reading many objects: pages with cursors and filters, and references expanded into the objects they name."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from devstack.stripe_double.messages import JsonObject, invalid
from devstack.stripe_double.objects import public
from devstack.stripe_double.state import State

if TYPE_CHECKING:
    from devstack.stripe_double.core import StripeDouble

DEFAULT_LIMIT = 10
MAX_LIMIT = 100
MAX_EXPAND_DEPTH = 4  # as at Stripe
MAX_TYPES = 20  # of events, as at Stripe


def page(double: StripeDouble, kind: str, path: str, parameters: JsonObject, filters: tuple[str, ...]) -> JsonObject:
    """Return one page of objects of `kind`, newest first. Raises Refused."""
    limit = parameters.get("limit", DEFAULT_LIMIT)
    if not 1 <= limit <= MAX_LIMIT:
        raise invalid("limit", f"limit must be between 1 and {MAX_LIMIT}", code="parameter_invalid_integer")
    if len(parameters.get("types", ())) > MAX_TYPES:
        raise invalid("types", f"You may list up to {MAX_TYPES} types of events")
    state = double.state
    seen = (found for found in state.of_kind(kind) if found.get("_account") == double.acting_account)
    matching = [found for found in seen if _matches(found, parameters, filters)]
    ids = [found["id"] for found in matching]
    start = 0
    end = len(matching)
    if "starting_after" in parameters:
        start = _position(ids, parameters["starting_after"], "starting_after") + 1
    if "ending_before" in parameters:
        end = _position(ids, parameters["ending_before"], "ending_before")
        start = max(start, end - limit)
    chosen = matching[start:end][:limit]
    paths = [name.removeprefix("data.") for name in parameters.get("expand", [])]
    more = start > 0 if "ending_before" in parameters else start + limit < end
    return {
        "object": "list",
        "url": path,
        "has_more": more,
        "data": [expanded(state, found, paths) for found in chosen],
    }


def expanded(state: State, found: JsonObject, paths: list[str]) -> JsonObject:
    """Return a public copy of `found` with the references named by dotted `paths` as objects. Raises Refused."""
    shown = copy.deepcopy(public(found))
    for path in paths:
        names = path.split(".")
        if len(names) > MAX_EXPAND_DEPTH:
            raise invalid("expand", f"You cannot expand more than {MAX_EXPAND_DEPTH} levels of a property")
        _expand(state, shown, names, path)
    return shown


def _expand(state: State, shown: JsonObject, names: list[str], path: str) -> None:
    if names[0] not in shown:
        raise invalid("expand", f"This property cannot be expanded ({path}).")
    value = shown[names[0]]
    if isinstance(value, str):
        if value not in state.objects:
            raise invalid("expand", f"This property cannot be expanded ({path}).")
        value = shown[names[0]] = copy.deepcopy(public(state.objects[value]))
    if isinstance(value, dict) and len(names) > 1:
        _expand(state, value, names[1:], path)


def _position(ids: list[str], object_id: str, param: str) -> int:
    if object_id not in ids:
        raise invalid(param, f"No such object: '{object_id}'", code="resource_missing")
    return ids.index(object_id)


def _matches(found: JsonObject, parameters: JsonObject, filters: tuple[str, ...]) -> bool:
    return _within(found["created"], parameters.get("created")) and all(
        _has(found, name, parameters[name]) for name in filters if name in parameters
    )


def _within(created: int, bounds: Any) -> bool:
    if bounds is None or isinstance(bounds, int):
        return bounds is None or created == bounds
    return (
        created > bounds.get("gt", created - 1)
        and created >= bounds.get("gte", created)
        and created < bounds.get("lt", created + 1)
        and created <= bounds.get("lte", created)
    )


def _has(found: JsonObject, name: str, value: Any) -> bool:
    if name == "types":
        return found["type"] in value
    if name == "delivery_success":
        return (found["pending_webhooks"] == 0) is value
    if name == "type" and value.endswith(".*"):
        return bool(found["type"].startswith(value[:-1]))
    return bool(found.get(name) == value)
