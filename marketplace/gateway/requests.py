"""Parse what the gateway must know of a request body; everything else is the replica's to judge.

The body itself is forwarded unchanged, byte for byte (the ticket carries its hash).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from marketplace.gateway.errors import bad_request
from protocol.errors import ProtocolError
from protocol.names import ModelName, parse_model_name

DEFAULT_MAX_TOKENS = 512  # what a request that names no limit may cost at most; documented in docs/api.md
# A chat template adds role markers per message, and once a default system prompt and the generation prompt.
TEMPLATE_TOKENS_PER_MESSAGE = 16
TEMPLATE_TOKENS = 256
# A template adds instructions about functions, besides their descriptions.
TOOLS_TOKENS = 1024
MAX_CHOICES = 128  # completions of one request, over all its prompts


@dataclass(frozen=True)
class PredictionRequest:
    """The priced part of a completion request.

    `max_tokens`: of one completion. `choices`: completions of each prompt.
    `prompt_token_bounds`: for each prompt, an upper bound of its tokens: a byte-level vocabulary spends at least one
    byte per token. The replica counts exactly; this only sizes the hold.
    """

    model: ModelName
    stream: bool
    include_usage: bool
    max_tokens: int
    choices: int
    prompt_token_bounds: tuple[int, ...]

    def worst_prompt_tokens(self, context_length: int) -> int:
        """Return the most prompt tokens that a model of this context can be made to read: a prompt counts once."""
        return sum(min(bound, context_length) for bound in self.prompt_token_bounds)

    def worst_tokens(self, context_length: int) -> int:
        """Return the most tokens that can be generated, over all completions of all prompts."""
        return len(self.prompt_token_bounds) * self.choices * min(self.max_tokens, context_length)


def parse_prediction_request(body: bytes, *, chat: bool) -> PredictionRequest:
    """Raises Refusal 400 naming the field."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The request body is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise bad_request("The request body must be a JSON object.")
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad_request("`stream_options` must be an object.", "stream_options")
    bounds = (_chat_bound(data),) if chat else _prompt_bounds(data.get("prompt"))
    choices = _choices(data)
    if choices * len(bounds) > MAX_CHOICES:
        raise bad_request(f"A request may make at most {MAX_CHOICES} completions, over all its prompts.", "n")
    return PredictionRequest(
        model=_model_name(data),
        stream=_boolean(data, "stream"),
        include_usage=_boolean(options, "include_usage"),
        max_tokens=_max_tokens(data),
        choices=choices,
        prompt_token_bounds=bounds,
    )


def _model_name(data: dict[str, Any]) -> ModelName:
    try:
        return parse_model_name(data.get("model"))
    except ProtocolError:
        raise bad_request("`model` must be 'organization/model' or 'organization/model@version'.", "model") from None


def _choices(data: dict[str, Any]) -> int:
    n = data.get("n")
    n = 1 if n is None else n
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_CHOICES:
        raise bad_request(f"`n` must be an integer from 1 to {MAX_CHOICES}.", "n")
    if data.get("best_of") not in (None, n):
        raise bad_request("`best_of` must equal `n`: what is generated is returned, and paid for.", "best_of")
    return n


def _boolean(data: dict[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(f"`{name}` must be true or false.", name)
    return value


def _max_tokens(data: dict[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value = data.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
            raise bad_request(f"`{name}` must be an integer of at least 1.", name)
        return value
    return DEFAULT_MAX_TOKENS


def _text_bytes(value: object, param: str) -> int:
    """Return bytes of a message's content: a string, or OpenAI's list of text parts."""
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return sum(_text_bytes(part.get("text"), param) for part in value)
    raise bad_request(f"`{param}` must be text.", param)


def _json_bytes(value: object) -> int:
    """Return bytes of the widest way that a template may write this JSON."""
    return len(json.dumps(value, ensure_ascii=False, indent=4).encode("utf-8", "surrogatepass"))


def _chat_bound(data: dict[str, Any]) -> int:
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("`messages` must be a list with at least one message.", "messages")
    total = TEMPLATE_TOKENS
    for message in messages:
        if not isinstance(message, dict):
            raise bad_request("Each message must be an object with `role` and `content`.", "messages")
        total += TEMPLATE_TOKENS_PER_MESSAGE + _text_bytes(message.get("content"), "messages")
        if calls := message.get("tool_calls"):
            total += _json_bytes(calls)
        if message.get("role") in ("tool", "function"):
            total += TEMPLATE_TOKENS_PER_MESSAGE + _json_bytes(message.get("name"))
    if tools := data.get("tools"):
        total += TOOLS_TOKENS + 2 * _json_bytes(tools)
    return total


def _prompt_bounds(prompt: object) -> tuple[int, ...]:
    if isinstance(prompt, list) and prompt and all(isinstance(one, (str, list)) for one in prompt):
        if len(prompt) > MAX_CHOICES:
            raise bad_request(f"`prompt` must hold at most {MAX_CHOICES} prompts.", "prompt", code="invalid_prompt")
        return tuple(_prompt_bound(one) for one in prompt)
    return (_prompt_bound(prompt),)


def _prompt_bound(prompt: object) -> int:
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt) + 1
    if isinstance(prompt, str) and prompt:
        return len(prompt.encode("utf-8", "surrogatepass")) + 1
    raise bad_request(
        "`prompt` must be non-empty text, a list of token ids, or a list of those.", "prompt", code="invalid_prompt"
    )
