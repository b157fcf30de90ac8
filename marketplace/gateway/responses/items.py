"""Items of a conversation as the messages of a chat. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from marketplace.gateway.errors import bad_request

MAX_ITEMS = 2_000
_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text")
_NOT_TEXT = ("input_image", "input_file", "input_audio")

Item = dict[str, Any]


def parse_items(value: object) -> list[Item]:
    """Return the items of `input`: a text is a user's message. Raises Refusal 400."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise bad_request("`input` must be a text, or a list of at least one item.", "input")
    if len(value) > MAX_ITEMS:
        raise bad_request(f"`input` must have at most {MAX_ITEMS:,} items.", "input")
    for at, item in enumerate(value):
        _check(item, f"input[{at}]")
    return value


def messages_of(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the messages of items that were checked. Calls join the assistant's message that they follow."""
    messages: list[dict[str, Any]] = []
    for item in items:
        match _type_of(item):
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                messages.append({"role": role, "content": _content(item["content"])})
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(_call(item))
            case "function_call_output":
                output = {"role": "tool", "tool_call_id": item["call_id"], "content": _content(item["output"])}
                messages.append(output)
    return messages


def with_parts(item: Item) -> Item:
    """Return the item as OpenAI lists it: the content of a message is a list of parts."""
    content = item.get("content")
    if not isinstance(content, str):
        return item
    kind = "output_text" if item["role"] == "assistant" else "input_text"
    return item | {"content": [{"type": kind, "text": content}]}


def _type_of(item: Item) -> str:
    return item.get("type") or ("message" if "role" in item else "")


def _check(item: object, at: str) -> None:
    if not isinstance(item, dict):
        raise bad_request(f"`{at}` must be an object.", at)
    kind = _type_of(item)
    if kind == "message":
        if item.get("role") not in _ROLES:
            raise bad_request(f"`{at}.role` must be user, assistant, system or developer.", f"{at}.role")
        _check_content(item.get("content"), f"{at}.content")
    elif kind == "function_call":
        for name in ("call_id", "name", "arguments"):
            if not isinstance(item.get(name), str):
                raise bad_request(f"`{at}.{name}` must be a text.", f"{at}.{name}")
    elif kind == "function_call_output":
        if not isinstance(item.get("call_id"), str):
            raise bad_request(f"`{at}.call_id` must be a text.", f"{at}.call_id")
        _check_content(item.get("output"), f"{at}.output")
    elif kind != "reasoning":  # another model's thoughts, of which nothing is read
        message = f"Items of the type {str(kind)[:64]!r} are not supported: only messages, calls and their outputs."
        raise bad_request(message, f"{at}.type", code="unsupported_item")


def _check_content(content: object, at: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise bad_request(f"`{at}` must be a text, or a list of parts.", at)
    for number, part in enumerate(content):
        here = f"{at}[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _NOT_TEXT:
            message = f"`{here}` must be text: the models here read nothing else."
            raise bad_request(message, here, code="unsupported_part")
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in (*_TEXT_PARTS, "refusal") or not isinstance(text, str):
            raise bad_request(f"`{here}` must be a part of the type input_text or output_text.", here)


def _content(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    texts = [part["refusal"] if part["type"] == "refusal" else part["text"] for part in content]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _call(item: Item) -> dict[str, Any]:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}
