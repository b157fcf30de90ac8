"""Conversion of a body's prompts, messages and inputs to token ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from protocol.errors import require
from protocol.requests.bodies import ChatBody, CompletionBody, EmbeddingBody, FunctionCall, Message
from protocol.requests.checks import MAX_INPUTS, MAX_PROMPTS, prompts_of
from protocol.requests.parsing import call_arguments
from protocol.shares import Bound, Threads, declared
from serving.errors import refusing
from serving.http.errors import ApiError
from serving.tokenization.chat_template import ChatTemplateError
from serving.tokenization.tokenizer import Tokenizer
from serving.tokenization.tools import RawArguments, Tool

# Longer texts are tokenized off the event loop, because they would delay the tokens of all other requests.
_INLINE_CHARS = 8_192
PROMPTS = declared(Bound("prompts", places=4, share=2, waiting=64, seconds=60.0))
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. text: its text before tokenization; None if the request sent token ids."""

    token_ids: tuple[int, ...]
    text: str | None


class PromptReader:
    """The reader that turns requests into prompts for one model."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab_size
        self._threads = Threads(PROMPTS)

    async def completion(self, body: CompletionBody, tenant: str) -> list[Prompt]:
        """Return the prompts of a completion request. Raises ApiError 400."""
        return await self._read(prompts_of(body.prompt, "prompt", MAX_PROMPTS), "prompt", tenant)

    async def embedding(self, body: EmbeddingBody, tenant: str) -> list[Prompt]:
        """Return the inputs of an embedding request. Raises ApiError 400."""
        return await self._read(prompts_of(body.input, "input", MAX_INPUTS), "input", tenant)

    async def chat(self, body: ChatBody, tools: tuple[Tool, ...], tenant: str) -> list[Prompt]:
        """Return the prompt of a chat request. Raises ApiError 400, also when the template refuses the messages."""
        template = self._tokenizer.chat_template
        if template is None:
            raise ApiError(400, "This model has no chat template; use /v1/completions.", code="no_chat_template")
        messages = chat_messages(body)
        try:
            text = await self._apart(tenant, sum(len(m["content"]) for m in messages), template.render, messages, tools)
        except ChatTemplateError as error:
            raise ApiError(
                400, f"The chat template refused the messages: {error}", code="invalid_value", param="messages"
            ) from None
        return [Prompt(await self._encode(text, "messages", tenant, special=False), text)]

    async def _read(self, parts: list[str | list[int]], param: str, tenant: str) -> list[Prompt]:
        out = []
        for part in parts:
            if isinstance(part, str):
                out.append(Prompt(await self._encode(part, param, tenant, special=True), part))
            else:
                if not all(0 <= token < self._vocab for token in part):
                    raise ApiError(
                        400,
                        f"'{param}' token ids must be from 0 to {self._vocab - 1}.",
                        code="invalid_value",
                        param=param,
                    )
                out.append(Prompt(tuple(part), None))
        return out

    async def _encode(self, text: str, param: str, tenant: str, *, special: bool) -> tuple[int, ...]:
        ids = await self._apart(tenant, len(text), lambda: self._tokenizer.encode(text, add_special_tokens=special))
        require(bool(ids), param, "must not be empty")
        return tuple(ids)

    async def _apart(self, tenant: str, size: int, work: Callable[..., Result], *arguments: Any) -> Result:
        """Do `work` here when it is short, and in a thread when it would block the event loop."""
        if size <= _INLINE_CHARS:
            return work(*arguments)
        with refusing("long prompts"):
            return await self._threads.run(tenant, lambda _: work(*arguments))


def chat_messages(body: ChatBody) -> list[dict[str, Any]]:
    """Return the messages as a chat template reads them: text parts are joined, arguments of calls become objects."""
    out = []
    for message in body.messages:
        role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
        entry: dict[str, Any] = {"role": role, "content": text_of(message)}
        if calls := _calls(message):
            entry["tool_calls"] = calls
        if message.tool_call_id is not None:
            entry["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            entry["name"] = message.name
        out.append(entry)
    return out


def _calls(message: Message) -> list[dict[str, Any]]:
    """Return the calls of an assistant's message, in either form of OpenAI's API."""
    given: list[tuple[str | None, FunctionCall]] = [(call.id, call.function) for call in message.tool_calls or ()]
    if message.function_call is not None:
        given = [(None, message.function_call)]
    return [
        {"id": i, "type": "function", "function": {"name": one.name, "arguments": _arguments(one.arguments or "")}}
        for i, one in given
    ]


def text_of(message: Message) -> str:
    """Return what a message says: its content, or, where it has none, the refusal that an assistant gave instead."""
    content = message.content
    if isinstance(content, list):
        return "".join((part.refusal if part.type == "refusal" else part.text) or "" for part in content)
    return content or message.refusal or ""


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of an earlier call. Those of an answer that ended early are taken as they are."""
    value = call_arguments(text or "{}")
    return RawArguments(text) if value is None else value
