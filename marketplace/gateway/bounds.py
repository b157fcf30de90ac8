"""Upper bounds of a prompt's tokens, from the request's body alone: they size the hold and the ticket.

A byte-level vocabulary spends at least one byte per token, so the bytes of the longest text that a chat template can
make of a body bound its tokens. The replica counts exactly; a bound that is too low would refuse a good request.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from marketplace.gateway.errors import bad_request

# A chat template adds role markers per message, and once a default system prompt and the generation prompt.
TEMPLATE_TOKENS_PER_MESSAGE = 16
TEMPLATE_TOKENS = 256
# A template adds instructions about functions, besides their descriptions.
TOOLS_TOKENS = 1024
MAX_PROMPTS = 128
MAX_EMBEDDINGS = 2048  # texts of one request, as in OpenAI's API
MAX_DEPTH = 100  # of a function's description or arguments
_INDENT = 4


def chat_bound(data: dict[str, Any]) -> int:
    """Return a bound of a chat's prompt tokens. Raises Refusal 400 for messages that are not text."""
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("`messages` must be a list with at least one message.", "messages")
    total = TEMPLATE_TOKENS
    for message in messages:
        if not isinstance(message, dict):
            raise bad_request("Each message must be an object with `role` and `content`.", "messages")
        others = {name: value for name, value in message.items() if name != "content" and value is not None}
        total += TEMPLATE_TOKENS_PER_MESSAGE + _text_bytes(message.get("content")) + widest_json_bytes(others)
    if tools := data.get("tools"):
        total += TOOLS_TOKENS + 2 * widest_json_bytes(tools)
    return total


def prompt_bounds(prompt: object, *, field: str = "prompt", most: int = MAX_PROMPTS) -> tuple[int, ...]:
    """Return a bound for each of `most` prompts at most: text, token ids, or a list of those. Raises Refusal 400."""
    if isinstance(prompt, list) and prompt and all(isinstance(one, (str, list)) for one in prompt):
        if len(prompt) > most:
            raise bad_request(f"`{field}` must hold at most {most:,} texts.", field, code="invalid_prompt")
        return tuple(_prompt_bound(one, field) for one in prompt)
    return (_prompt_bound(prompt, field),)


def widest_json_bytes(value: object, depth: int = 0) -> int:
    """Return the bytes of the longest way in which a template may write this value, `depth` levels deep.

    A template may indent by four spaces per level, escape what is not ASCII, and write the arguments of a call, which
    arrive as JSON text, as the value they are. Raises Refusal 400 for values that are nested too deeply.
    """
    if isinstance(value, str):
        return len(json.dumps(value))
    if not isinstance(value, (dict, list)):
        return len(str(value)) + 2  # a number, or true, false or null in either language
    if depth > MAX_DEPTH:
        raise bad_request(f"Values may be nested {MAX_DEPTH} levels deep at most.")
    each = _INDENT * (depth + 1) + 2  # the line feed, the indentation and the comma of one member
    size = 2 + _INDENT * depth + 1 + each * len(value)
    if isinstance(value, list):
        return size + sum(widest_json_bytes(one, depth + 1) for one in value)
    for name, one in value.items():
        size += len(json.dumps(name)) + 2 + widest_json_bytes(one, depth + 1)
        if name == "arguments" and isinstance(one, str):
            size += _as_value(one, depth + 1)
    return size


def _as_value(arguments: str, depth: int) -> int:
    """Return the bytes of a call's arguments as the value that the replica hands to a template; 0 for other text."""
    try:
        return widest_json_bytes(orjson.loads(arguments), depth)
    except ValueError:
        return 0


def _text_bytes(value: object) -> int:
    """Return the bytes of a message's content: a string, or OpenAI's list of text parts."""
    if value is None:
        return 0
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return sum(_text_bytes(part.get("text")) + _text_bytes(part.get("refusal")) for part in value)
    raise bad_request("`messages` must be text.", "messages")


def _prompt_bound(prompt: object, field: str) -> int:
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt) + 1
    if isinstance(prompt, str) and prompt:
        return _utf8(prompt) + 1
    raise bad_request(
        f"`{field}` must be non-empty text, a list of token ids, or a list of those.", field, code="invalid_prompt"
    )


def _utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
