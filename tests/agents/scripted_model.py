"""A model that does what agents hope for: it calls the function that it is told to, and answers as asked."""

from __future__ import annotations

import json
from typing import Any

from tests.marketplace.gateway.scripted_replica import TOKENS, Turn

ARGUMENTS = {"weather": {"city": "Ulm"}}


def next_turn(body: dict[str, Any]) -> Turn:
    """Return the answer to a request: a call where one is forced, JSON where a schema is given, else a sentence."""
    if "messages" not in body:
        return Turn(texts=TOKENS)
    tools, last = body.get("tools") or (), body["messages"][-1]
    if tools and body.get("tool_choice") not in (None, "none", "auto") and last["role"] != "tool":
        name = tools[0]["function"]["name"]
        return Turn(calls=[("call_1", name, json.dumps(ARGUMENTS.get(name, {})))])
    if last["role"] == "tool":
        return Turn(texts=["The tool says: ", str(last["content"])])
    if (body.get("response_format") or {}).get("type") == "json_schema":
        return Turn(texts=['{"number"', ": 42}"])
    return Turn(texts=TOKENS)
