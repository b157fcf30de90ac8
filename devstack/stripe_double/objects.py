"""The fields that every object of Stripe has, and events, which carry copies of objects."""

from __future__ import annotations

import secrets
from typing import Any

from devstack.stripe_double.messages import JsonObject


def new_id(prefix: str) -> str:
    """Return a fresh id of Stripe's form."""
    return f"{prefix}_{secrets.token_hex(12)}"


def base(kind: str, prefix: str, now: int, **fields: Any) -> JsonObject:
    """Make an object. A field whose name begins with an underscore is the double's own, and is never shown."""
    return {"id": new_id(prefix), "object": kind, "created": now, "livemode": False, **fields}


def event(now: int, kind: str, subject: JsonObject, *, api_version: str, request_key: str | None) -> JsonObject:
    """Say that `kind` happened to `subject`, with the subject as it is at this moment."""
    return base(
        "event",
        "evt",
        now,
        api_version=api_version,
        data={"object": public(subject)},
        pending_webhooks=1,
        request={"id": None, "idempotency_key": request_key},
        type=kind,
    )


def public(found: JsonObject) -> JsonObject:
    """Return the object without the fields that the double keeps for itself."""
    return {name: value for name, value in found.items() if not name.startswith("_")}
