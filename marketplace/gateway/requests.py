"""Parse what the gateway must know of a request body; everything else is the replica's to judge.

The body itself is forwarded unchanged, byte for byte (the ticket carries its hash).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import orjson

from marketplace.gateway.errors import bad_request

MODEL_PATTERN = re.compile(
    r"^([a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?)/([a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?)(?:@([1-9]\d{0,5}))?$"
)
DEFAULT_MAX_TOKENS = 512  # what a request that names no limit may cost at most; documented in docs/api.md
# What a chat template adds: role markers per message, and once a default system prompt and the generation prompt.
TEMPLATE_TOKENS_PER_MESSAGE = 16
TEMPLATE_TOKENS = 256


@dataclass(frozen=True)
class ModelName:
    """`org/slug` or `org/slug@version`."""

    organization: str
    slug: str
    version: int | None

    def __str__(self) -> str:
        return f"{self.organization}/{self.slug}" + (f"@{self.version}" if self.version else "")


@dataclass(frozen=True)
class PredictionRequest:
    """The priced part of a completion request.

    `prompt_tokens_bound`: no prompt of these bytes can have more tokens, because a byte-level vocabulary spends at
    least one byte a token. The replica counts exactly; this only sizes the hold.
    """

    model: ModelName
    stream: bool
    include_usage: bool
    max_tokens: int
    prompt_tokens_bound: int


def parse_model_name(value: object) -> ModelName:
    """Raises ApiError 400."""
    if not isinstance(value, str) or not (match := MODEL_PATTERN.match(value)):
        raise bad_request("`model` must be 'organization/model' or 'organization/model@version'.", "model")
    return ModelName(match[1], match[2], int(match[3]) if match[3] else None)


def parse_prediction_request(body: bytes, *, chat: bool) -> PredictionRequest:
    """Raises ApiError 400 naming the field."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The request body is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise bad_request("The request body must be a JSON object.")
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad_request("`stream_options` must be an object.", "stream_options")
    return PredictionRequest(
        model=parse_model_name(data.get("model")),
        stream=_boolean(data, "stream"),
        include_usage=_boolean(options, "include_usage"),
        max_tokens=_max_tokens(data),
        prompt_tokens_bound=_chat_bound(data.get("messages")) if chat else _prompt_bound(data.get("prompt")),
    )


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
    """Bytes of a message's content: a string, or OpenAI's list of text parts."""
    if value is None:
        return 0
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return sum(_text_bytes(part.get("text"), param) for part in value)
    raise bad_request(f"`{param}` must be text.", param)


def _chat_bound(messages: object) -> int:
    if not isinstance(messages, list) or not messages:
        raise bad_request("`messages` must be a list with at least one message.", "messages")
    total = TEMPLATE_TOKENS
    for message in messages:
        if not isinstance(message, dict):
            raise bad_request("Each message must be an object with `role` and `content`.", "messages")
        total += TEMPLATE_TOKENS_PER_MESSAGE + _text_bytes(message.get("content"), "messages")
    return total


def _prompt_bound(prompt: object) -> int:
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return len(prompt) + 1
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return _prompt_bound(prompt[0])
    if isinstance(prompt, str) and prompt:
        return len(prompt.encode("utf-8", "surrogatepass")) + 1
    raise bad_request("`prompt` must be one non-empty text or one list of token ids.", "prompt", code="invalid_prompt")
