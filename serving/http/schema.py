"""Request bodies, parsed once into typed values. What OpenAI accepts and we cannot do is refused by name, never ignored
where it would change the answer."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from serving.core import SamplingParams
from serving.http.errors import ApiError

MAX_STOPS, MAX_STOP_CHARS, MAX_LOGPROBS = 16, 256, 20


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Common(msgspec.Struct, kw_only=True):
    """What both endpoints share. Unknown fields are ignored, as OpenAI's clients send them freely."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(_Common, kw_only=True):
    """POST /v1/completions. prompt: text, token ids, or a list holding exactly one of either."""

    prompt: Any
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None


class ChatBody(_Common, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None


Body = TypeVar("Body", CompletionBody, ChatBody)
AnyBody = CompletionBody | ChatBody


def parse(data: bytes, kind: type[Body]) -> Body:
    """Raises ApiError 400 naming what is wrong."""
    try:
        body = msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        path = str(error).partition(" - at `$")[2]
        raise ApiError(400, str(error), code="invalid_value", param=path.rstrip("`").lstrip(".") or None) from None
    except msgspec.DecodeError as error:
        raise ApiError(400, f"We could not parse the JSON body of your request: {error}", code="invalid_json") from None
    _refuse_unsupported(body)
    return body


def sampling_params(body: AnyBody) -> SamplingParams:
    """Raises ApiError 400 for values out of range."""
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    _require(0 <= temperature <= 2, "temperature", "must be between 0 and 2")
    _require(0 < top_p <= 1, "top_p", "must be above 0 and at most 1")
    stop = [body.stop] if isinstance(body.stop, str) else list(body.stop or ())
    _require(
        len(stop) <= MAX_STOPS and all(0 < len(s) <= MAX_STOP_CHARS for s in stop),
        "stop",
        f"must be at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters",
    )
    return SamplingParams(temperature, top_p, body.seed, tuple(stop), body.ignore_eos, _logprob_count(body))


def max_tokens(body: AnyBody, default: int) -> int:
    """Tokens to generate at most. Raises ApiError 400 unless positive."""
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    _require(asked is None or asked >= 1, "max_tokens", "must be at least 1")
    return default if asked is None else asked


def prompt_parts(body: CompletionBody) -> str | list[int]:
    """The one prompt of a completion. Raises ApiError 400 for none, several, or a mixture."""
    prompt = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    _require(
        isinstance(prompt, list) and bool(prompt) and all(type(t) is int for t in prompt),
        "prompt",
        "must be a string, a list of token ids, or a list holding one of those; send several prompts one by one",
    )
    return prompt


def chat_messages(body: ChatBody) -> list[dict[str, str]]:
    """Messages as a chat template reads them; text parts are joined. Raises ApiError 400 for anything but text."""
    _require(bool(body.messages), "messages", "must hold at least one message")
    out = []
    for index, message in enumerate(body.messages):
        content = message.content
        if isinstance(content, list):
            _require(
                all(p.type == "text" and p.text is not None for p in content),
                f"messages[{index}].content",
                "must be text: this model reads nothing else",
            )
            content = "".join(part.text or "" for part in content)
        _require(message.tool_calls is None, f"messages[{index}].tool_calls", "is not supported")
        out.append({"role": message.role, "content": content or ""})
    return out


def _logprob_count(body: AnyBody) -> int | None:
    if isinstance(body, ChatBody):
        if not body.logprobs:
            return None
        count = body.top_logprobs or 0
    elif body.logprobs is None:
        return None
    else:
        count = body.logprobs
    _require(0 <= count <= MAX_LOGPROBS, "logprobs", f"must be between 0 and {MAX_LOGPROBS}")
    return count


def _refuse_unsupported(body: AnyBody) -> None:
    _require(body.n in (None, 1), "n", "must be 1: ask once for each completion")
    _require(not body.presence_penalty, "presence_penalty", "is not supported")
    _require(not body.frequency_penalty, "frequency_penalty", "is not supported")
    _require(not body.logit_bias, "logit_bias", "is not supported")
    _require(body.stream_options is None or body.stream, "stream_options", "is only allowed when stream is true")
    if isinstance(body, CompletionBody):
        _require(not body.echo, "echo", "is not supported")
        _require(not body.suffix, "suffix", "is not supported")
        _require(body.best_of in (None, 1), "best_of", "must be 1")
    else:
        _require(not body.tools, "tools", "is not supported")
        _require(
            body.response_format is None or body.response_format.get("type") == "text",
            "response_format",
            "must be text",
        )


def _require(holds: bool, param: str, rule: str) -> None:
    if not holds:
        raise ApiError(400, f"'{param}' {rule}.", code="invalid_value", param=param)
