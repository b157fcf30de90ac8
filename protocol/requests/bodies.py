"""Request bodies as typed values.

`protocol.request_fields` says what becomes of fields that are not here: they are ignored, or refused by name.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, TypeVar

import msgspec

from protocol import request_fields


class _Nullable(msgspec.Struct):
    """A part of a body in which null means absent: OpenAI's description makes every optional field nullable."""

    def __post_init__(self) -> None:
        for name, default in _defaults(type(self)):
            if getattr(self, name) is None:
                setattr(self, name, default)


@cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a struct that have a default other than None."""
    fields = msgspec.structs.fields(kind)
    return tuple((f.name, f.default) for f in fields if f.default is not None and not f.required)


class StreamOptions(_Nullable):
    include_usage: bool | None = False


class _Model(_Nullable, kw_only=True):
    """The fields of every body. user, safety_identifier: the caller's name for whom it asks."""

    model: str
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None


class _Generation(_Model, kw_only=True):
    """The fields of both completion endpoints."""

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = False
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = False
    return_token_ids: bool | None = False
    speculation: bool | None = True
    confidence: bool | None = False
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        """Return the number of completions per prompt that are returned."""
        return 1 if self.n is None else self.n

    @property
    def computed(self) -> int:
        """Return the number of completions, or beams, per prompt that are computed."""
        return self.choices if self.best_of is None else self.best_of

    @property
    def chooses(self) -> bool:
        """Return whether more is computed than returned."""
        return bool(self.use_beam_search) or self.computed > self.choices


class CompletionBody(_Generation, kw_only=True):
    """The body of POST /v1/completions. prompt: text, token ids, or a list of either."""

    prompt_field: ClassVar[str] = "prompt"
    fields: ClassVar[request_fields.Body] = "completions"

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = False


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(_Nullable):
    name: str
    arguments: str | None = ""


class ToolCall(_Nullable):
    function: FunctionCall
    id: str | None = None
    type: str | None = "function"


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None  # the older form of one call
    tool_call_id: str | None = None
    refusal: str | None = None
    audio: Any = None


class FunctionSpec(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSpec(msgspec.Struct):
    type: str
    function: FunctionSpec


class FunctionName(msgspec.Struct):
    name: str


class NamedChoice(msgspec.Struct):
    type: str
    function: FunctionName


class ChatBody(_Generation, kw_only=True):
    """The body of POST /v1/chat/completions."""

    prompt_field: ClassVar[str] = "messages"
    fields: ClassVar[request_fields.Body] = "chat"

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: str | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None


class EmbeddingBody(_Model, kw_only=True):
    """The body of POST /v1/embeddings. input: text, token ids, or a list of either."""

    prompt_field: ClassVar[str] = "input"
    fields: ClassVar[request_fields.Body] = "embeddings"

    input: Any
    encoding_format: str | None = "float"


# Fields that say who asks what, and how the answer is sent; limits and the number of answers are looked at by value.
_PLAIN = frozenset(
    ("model", "messages", "stream", "stream_options", "service_tier", "user", "safety_identifier", "n", "best_of")
) | frozenset(("max_tokens", "max_completion_tokens"))
Body = TypeVar("Body", CompletionBody, ChatBody, EmbeddingBody)
GenerationBody = CompletionBody | ChatBody
AnyBody = CompletionBody | ChatBody | EmbeddingBody


def untouched(body: GenerationBody, *, max_tokens: int) -> bool:
    """Return whether the caller left to the model's contract whatever can influence how an answer ends.

    `max_tokens` is the contract's limit, which may be named. Every other field of a body must be absent, null or at its
    default, but for those that say what is asked and how it is sent: a new field steers until it is named here.
    """
    limits = (body.max_tokens, getattr(body, "max_completion_tokens", None))
    alone = body.choices == body.computed == 1 and all(limit in (None, max_tokens) for limit in limits)
    return alone and all(getattr(body, name) == default for name, default in _steering(type(body)))


@cache
def _steering(kind: type[GenerationBody]) -> tuple[tuple[str, Any], ...]:
    """Return the fields that can influence how an answer ends, with their defaults."""
    return tuple((f.name, f.default) for f in msgspec.structs.fields(kind) if f.name not in _PLAIN)


def describe_bodies() -> dict[str, Any]:
    """Return the JSON schemas of all bodies by name; references are those of an OpenAPI document."""
    kinds = (ChatBody, CompletionBody, EmbeddingBody)
    return msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")[1]
