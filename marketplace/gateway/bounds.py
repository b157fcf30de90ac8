"""Upper bounds of a prompt's tokens, from the request's body alone: they size the hold and the ticket.

A byte-level vocabulary spends at least one byte per token, so the bytes of the longest text that a chat template can
make of a body bound its tokens. The replica counts exactly; a bound that is too low would refuse a good request. The
bodies were checked before (`protocol.requests`).
"""

from __future__ import annotations

import json
from typing import Any

from protocol.requests.parsing import call_arguments

# A chat template adds role markers per message, and once a default system prompt and the generation prompt.
TEMPLATE_TOKENS_PER_MESSAGE = 16
TEMPLATE_TOKENS = 256
# A template adds instructions about functions, besides their descriptions.
TOOLS_TOKENS = 1024
_INDENT = 4


def chat_bound(data: dict[str, Any]) -> int:
    """Return a bound of a chat's prompt tokens."""
    total = TEMPLATE_TOKENS
    for message in data["messages"]:
        others = {name: value for name, value in message.items() if name != "content" and value is not None}
        if call := others.pop("function_call", None):  # a template reads it as the newer form
            others["tool_calls"] = [{"id": None, "type": "function", "function": call}]
        total += TEMPLATE_TOKENS_PER_MESSAGE + _text_bytes(message.get("content")) + widest_json_bytes(others)
    if tools := data.get("tools"):
        total += TOOLS_TOKENS + 2 * widest_json_bytes(tools)
    return total


def prompt_bounds(prompts: str | list[Any]) -> tuple[int, ...]:
    """Return a bound for each prompt: text, token ids, or a list of those."""
    if isinstance(prompts, list) and not isinstance(prompts[0], int):
        return tuple(_prompt_bound(one) for one in prompts)
    return (_prompt_bound(prompts),)


def widest_json_bytes(value: object, depth: int = 0) -> int:
    """Return the bytes of the longest way in which a template may write this value, `depth` levels deep.

    A template may indent by four spaces per level, escape what is not ASCII, and write the arguments of a call, which
    arrive as JSON text, as the value they are.
    """
    if isinstance(value, str):
        return len(json.dumps(value))
    if not isinstance(value, (dict, list)):
        return len(str(value)) + 2  # a number, or true, false or null in either language
    each = _INDENT * (depth + 1) + 2  # the line feed, the indentation and the comma of one member
    size = 2 + _INDENT * depth + 1 + each * len(value)
    if isinstance(value, list):
        return size + sum(widest_json_bytes(one, depth + 1) for one in value)
    for name, one in value.items():
        size += len(json.dumps(name)) + 2 + widest_json_bytes(one, depth + 1)
        if name == "arguments" and isinstance(one, str) and (arguments := call_arguments(one)) is not None:
            size += widest_json_bytes(arguments, depth + 1)
    return size


def _text_bytes(content: str | list[dict[str, Any]] | None) -> int:
    """Return the bytes of a message's content: a string, or OpenAI's list of parts."""
    if isinstance(content, list):
        return sum(_utf8(part.get("text") or "") + _utf8(part.get("refusal") or "") for part in content)
    return _utf8(content or "")


def _prompt_bound(prompt: str | list[int]) -> int:
    return 1 + (_utf8(prompt) if isinstance(prompt, str) else len(prompt))


def _utf8(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
