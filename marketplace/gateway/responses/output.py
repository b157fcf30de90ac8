"""The response that a chat completion's answer is: its output items, its status and its usage. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from marketplace.gateway.responses.items import Item
from marketplace.gateway.responses.request import RESPONSE_PREFIX, ResponseRequest
from protocol.messages import PREDICTION_EXTRA_KEY

Status = Literal["in_progress", "completed", "incomplete", "failed"]
# Ends of a chat completion at which the response is whole; the others say why it is not.
_WHOLE = ("stop", "tool_calls")
_REASONS = {"length": "max_output_tokens"}


@dataclass(frozen=True)
class Ending:
    """The end of a response. `reason` is that of `incomplete_details`, `error` the message of a failure."""

    status: Status
    reason: str | None = None
    error: str | None = None

    @property
    def item_status(self) -> str:
        """Return the status of the item at which the response ended."""
        return "completed" if self.status == "completed" else "incomplete"


IN_PROGRESS = Ending("in_progress")
UNREADABLE = (AttributeError, LookupError, TypeError, ValueError)  # raised by an answer that a broken replica made up


def ending_of(finish_reason: object) -> Ending:
    """Return the end of a response for that of a chat completion's choice; a reason without a name of OpenAI's stays.

    `budget` is one: money ended the answer, not `max_output_tokens`.
    """
    if finish_reason in _WHOLE:
        return Ending("completed")
    reason = str(finish_reason or "interrupted")
    return Ending("incomplete", _REASONS.get(reason, reason))


def message_item(prediction_id: UUID, number: int, text: str, status: str) -> Item:
    """Return the item of a text; `number` is its place in the output."""
    return {
        "type": "message",
        "id": f"msg_{prediction_id.hex}{number:02d}",
        "status": status,
        "role": "assistant",
        "content": [text_part(text)],
    }


def text_part(text: str) -> dict[str, Any]:
    """Return the part that has the text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(prediction_id: UUID, number: int, call_id: str, name: str, arguments: str, status: str) -> Item:
    """Return the item of a call of a function."""
    return {
        "type": "function_call",
        "id": f"fc_{prediction_id.hex}{number:02d}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def whole_response(request: ResponseRequest, prediction_id: UUID, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the response of a whole answer of a chat completion. Raises UNREADABLE for what is none."""
    choice = answer["choices"][0]
    message, ending = choice["message"], ending_of(choice.get("finish_reason"))
    calls = message.get("tool_calls") or []
    text = message.get("content") or message.get("refusal") or ""
    output: list[Item] = []
    if text or not calls:
        status = "completed" if calls else ending.item_status
        output.append(message_item(prediction_id, 0, text, status))
    for call in calls:
        status = ending.item_status if call is calls[-1] else "completed"
        function = call["function"]
        output.append(
            call_item(prediction_id, len(output), call["id"], function["name"], function["arguments"] or "", status)
        )
    return response_of(request, prediction_id, answer, output, ending)


def response_of(
    request: ResponseRequest, prediction_id: UUID, answer: dict[str, Any], output: list[Item], ending: Ending
) -> dict[str, Any]:
    """Return the response as it stands; `answer` is the whole answer or an event of the chat completion."""
    data = request.data
    response = {
        "id": RESPONSE_PREFIX + prediction_id.hex,
        "object": "response",
        "created_at": answer.get("created") or 0,
        "status": ending.status,
        "background": False,
        "error": None if ending.error is None else {"code": "server_error", "message": ending.error},
        "incomplete_details": None if ending.reason is None else {"reason": ending.reason},
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata,
        "model": answer.get("model") or data.get("model"),
        "output": output,
        "parallel_tool_calls": data.get("parallel_tool_calls") is not False,
        "previous_response_id": None if request.previous_id is None else RESPONSE_PREFIX + request.previous_id.hex,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": data.get("service_tier") or "auto",
        "store": request.store,
        "temperature": data.get("temperature"),
        "text": {"format": request.text_format},
        "tool_choice": request.tool_choice,
        "tools": request.tools,
        "top_p": data.get("top_p"),
        "truncation": "disabled",
        "usage": usage_of(answer.get("usage")),
        "user": data.get("user"),
    }
    about = answer.get(PREDICTION_EXTRA_KEY)
    return response if about is None else response | {PREDICTION_EXTRA_KEY: about}


def usage_of(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the usage of a chat completion under the Responses' names, with what it cost."""
    if not usage or "prompt_tokens" not in usage:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    costs: dict[str, Any] = {name: usage[name] for name in ("cost_nano_usd", "cost") if name in usage}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.get("completion_tokens", 0),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.get("total_tokens", 0),
        **costs,
    }
