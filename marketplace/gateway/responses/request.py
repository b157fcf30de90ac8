"""The request of a response, and the chat completion that it asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from marketplace.accounts.metadata import parse_metadata
from marketplace.gateway.errors import bad_request, require_fields
from marketplace.gateway.http import MAX_BODY_BYTES
from marketplace.gateway.json_bodies import json_object
from marketplace.gateway.responses.items import Item, messages_of, parse_items
from protocol.requests.checks import MAX_TOKENS

RESPONSE_PREFIX = "resp_"
# Tools that a platform would run itself: fetching what a model names is a way into its network.
_HOSTED = (
    "web_search",
    "file_search",
    "computer",
    "code_interpreter",
    "mcp",
    "image_generation",
    "local_shell",
    "shell",
    "apply_patch",
)
_PASSED_ON = ("temperature", "top_p", "parallel_tool_calls", "service_tier", "user", "safety_identifier")


@dataclass(frozen=True, repr=False)  # its input is a customer's prompt
class ResponseRequest:
    """A request that was checked. `store`: the response is to be kept; `tools` are functions in the Responses' form."""

    data: dict[str, Any]
    items: list[Item]
    instructions: str | None
    stream: bool
    store: bool
    metadata: dict[str, str]
    previous_id: UUID | None
    max_output_tokens: int | None
    tools: list[dict[str, Any]]
    tool_choice: Any
    text_format: dict[str, Any]

    def chat_body(self, earlier: Iterable[Item] = ()) -> bytes:
        """Return the body of the chat completion; `earlier` are the items of the conversation before this request.

        Raises Refusal 400 for a conversation that is too long for one request.
        """
        messages = messages_of([*earlier, *self.items])
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        if not messages:
            raise bad_request("`input` must have a message, a function call or the output of one.", "input")
        body: dict[str, Any] = {"model": self.data.get("model"), "messages": messages}
        body |= {name: self.data[name] for name in _PASSED_ON if self.data.get(name) is not None}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.max_output_tokens is not None:
            body["max_completion_tokens"] = self.max_output_tokens
        if self.tools:
            body["tools"] = [_chat_tool(tool) for tool in self.tools]
            body["tool_choice"] = _chat_choice(self.tool_choice)
        else:
            body.pop("parallel_tool_calls", None)
        if self.text_format["type"] != "text":
            body["response_format"] = _chat_format(self.text_format)
        encoded = orjson.dumps(body)
        if len(encoded) > MAX_BODY_BYTES:
            raise bad_request("The conversation is too long for one request.", "input", code="conversation_too_long")
        return encoded


def parse_response_request(body: bytes) -> ResponseRequest:
    """Read a request body. Raises Refusal 400, which names the field."""
    data = json_object(body)
    _refuse_unsupported(data)
    instructions = data.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise bad_request("`instructions` must be a text.", "instructions")
    return ResponseRequest(
        data=data,
        items=parse_items(data.get("input")),
        instructions=instructions,
        stream=_boolean(data, "stream"),
        store=_boolean(data, "store"),
        metadata=parse_metadata(data.get("metadata")),
        previous_id=_previous(data.get("previous_response_id")),
        max_output_tokens=_max_tokens(data.get("max_output_tokens")),
        tools=_tools(data.get("tools")),
        tool_choice=_tool_choice(data.get("tool_choice")),
        text_format=_text_format(data.get("text")),
    )


def response_id_of(text: str) -> UUID | None:
    """Return the prediction of a response's id; None for another text."""
    digits = text.removeprefix(RESPONSE_PREFIX)
    if digits == text or len(digits) != 32 or not set(digits) <= set("0123456789abcdef"):
        return None
    return UUID(hex=digits)


def _refuse_unsupported(data: dict[str, Any]) -> None:
    if data.get("background"):
        message = "`background` is not supported here: a response is answered on its own connection."
        raise bad_request(message, "background", code="unsupported_parameter")
    if data.get("truncation") not in (None, "disabled"):
        message = "`truncation` must be disabled: what does not fit is refused, and nothing is left out."
        raise bad_request(message, "truncation", code="unsupported_parameter")
    require_fields("responses", data)


def _boolean(data: dict[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"`{name}` must be true or false.", name)
    return bool(value)


def _previous(value: object) -> UUID | None:
    if value is None:
        return None
    found = response_id_of(value) if isinstance(value, str) else None
    if found is None:
        raise bad_request("`previous_response_id` must be the id of a response.", "previous_response_id")
    return found


def _max_tokens(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TOKENS:
        message = f"`max_output_tokens` must be an integer from 1 to {MAX_TOKENS:,}."
        raise bad_request(message, "max_output_tokens")
    return value


def _tools(value: object) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad_request("`tools` must be a list.", "tools")
    for at, tool in enumerate(value):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind.startswith(_HOSTED):
            message = f"The hosted tool {kind[:64]!r} is not supported: offer functions, and run them yourself."
            raise bad_request(message, f"tools[{at}].type", code="unsupported_tool")
        if kind != "function" or not isinstance(tool.get("name"), str):
            raise bad_request(f"`tools[{at}]` must be a function with a name.", f"tools[{at}]", code="unsupported_tool")
    return [
        {name: tool.get(name) for name in ("type", "name", "description", "parameters", "strict")} for tool in value
    ]


def _tool_choice(value: Any) -> Any:
    if value is None or value in ("auto", "none", "required"):
        return value or "auto"
    if isinstance(value, dict) and value.get("type") == "function" and isinstance(value.get("name"), str):
        return {"type": "function", "name": value["name"]}
    message = "`tool_choice` must be auto, none, required, or a function by its name."
    raise bad_request(message, "tool_choice")


def _text_format(value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise bad_request("`text` must be an object.", "text")
    given = (value or {}).get("format") or {"type": "text"}
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("text", "json_object"):
        return {"type": kind}
    if kind == "json_schema" and isinstance(given.get("name"), str) and isinstance(given.get("schema"), dict):
        named = {name: given.get(name) for name in ("name", "description", "schema", "strict")}
        return {"type": kind, **{name: one for name, one in named.items() if one is not None}}
    message = "`text.format` must be text, json_object, or json_schema with a name and a schema."
    raise bad_request(message, "text.format")


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": given}


def _chat_choice(choice: Any) -> Any:
    return choice if isinstance(choice, str) else {"type": "function", "function": {"name": choice["name"]}}


def _chat_format(text_format: dict[str, Any]) -> dict[str, Any]:
    if text_format["type"] == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {k: v for k, v in text_format.items() if k != "type"}}
