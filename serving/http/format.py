"""Completions in OpenAI's format: one class per endpoint, which keeps the state of each choice so far."""

from __future__ import annotations

import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serving.core import Delta, Usage
from serving.tokenization.output import TextOffsets
from serving.tokenization.tokenizer import Tokenizer
from serving.tokenization.tool_calls import CallArguments, CallStart, Event, ToolCallParser


def usage_json(usage: Usage) -> dict[str, Any]:
    details = {
        "accepted_prediction_tokens": usage.accepted_tokens,
        "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
    }
    if usage.returned_tokens is not None:
        details["returned_tokens"] = usage.returned_tokens
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": details,
    }


@dataclass(frozen=True, slots=True)
class Style:
    """The form of answer that a body asked for.

    include_usage: every chunk has a "usage" key, null but for the last
    echo: the text of each choice's prompt, to begin the answer with
    first_tokens: the first token of each prompt that is echoed with log-probabilities; it has no log-probability
    logprobs: shown where there are any; confidence: the probability of each whole answer is shown
    tools: calls are looked for; forced: the answer is calls alone
    named: one function was named, which OpenAI ends with "stop" all the same
    """

    include_usage: bool = False
    token_ids: bool = False
    echo: tuple[str, ...] = ()
    first_tokens: tuple[int, ...] = ()
    tools: bool = False
    forced: bool = False
    named: bool = False
    service_tier: str | None = None
    logprobs: bool = True
    confidence: bool = False


class Format(ABC):
    """The form in which one endpoint writes its answers."""

    prefix: str
    stream_object: str
    whole_object: str

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer, style: Style) -> None:
        self._tokenizer, self._style = tokenizer, style
        self._weights: dict[int, float] = {}  # of each choice, the sum of its tokens' log-probabilities
        self._head = {"id": self.prefix + request_id.replace("-", ""), "created": int(time.time()), "model": model}
        if style.service_tier is not None:
            tier = "default" if style.service_tier == "auto" else style.service_tier
            self._head["service_tier"] = tier

    def chunk(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """Return the event for one step's addition to a choice, or None when there is nothing to send yet."""
        return self._event(index, self._weighed(index, delta))

    def whole(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        """Return the answer of a request that does not stream, from the deltas of each choice by its index."""
        shown = {index: [self._weighed(index, delta) for delta in deltas] for index, deltas in choices.items()}
        return self._answer(shown, usage)

    @abstractmethod
    def _event(self, index: int, delta: Delta) -> dict[str, Any] | None:
        """Return the event for a delta as it may be shown, or None when there is nothing to send yet."""

    @abstractmethod
    def _answer(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        """Return the answer of deltas as they may be shown."""

    def _weighed(self, index: int, delta: Delta) -> Delta:
        """Count a delta's probability in; return it without log-probabilities that nobody asked to see."""
        if self._style.confidence:
            self._weights[index] = self._weights.get(index, 0.0) + sum(entry.logprob for entry in delta.logprobs)
        return delta if self._style.logprobs or not delta.logprobs else replace(delta, logprobs=())

    def closing(self, usage: Usage) -> dict[str, Any]:
        """Return the chunk that carries usage and no choice."""
        return {**self._head, "object": self.stream_object, "choices": [], "usage": usage_json(usage)}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        out = {**self._head, "object": self.stream_object, "choices": [choice]}
        if self._style.include_usage:
            out["usage"] = None
        return out

    def _whole(self, choices: Sequence[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": self.whole_object, "choices": choices, "usage": usage_json(usage)}

    def _choice(self, index: int, deltas: Sequence[Delta], reason: str | None, **fields: Any) -> dict[str, Any]:
        choice = {
            "index": index,
            **fields,
            "logprobs": self._logprobs(index, deltas),
            "finish_reason": reason,
        }
        if self._style.confidence and deltas[-1].finish_reason is not None:
            # Two digits say how sure an answer is; more would help those who copy a model from its answers.
            choice["confidence"] = round(math.exp(self._weights[index]), 2)
        if self._style.token_ids:
            choice["token_ids"] = [token for delta in deltas for token in delta.token_ids]
        return choice

    @abstractmethod
    def _logprobs(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any] | None:
        """Return the "logprobs" of a choice in this endpoint's format."""

    def shows(self, delta: Delta) -> bool:
        """Return whether the chunk of `delta` shows the client something of its tokens: text may be held back."""
        ended = delta.finish_reason not in (None, "cancelled")
        return ended or bool(delta.text or delta.logprobs or (self._style.token_ids and delta.token_ids))

    def _says_something(self, delta: Delta) -> bool:
        return bool(delta.finish_reason or delta.logprobs or self._style.token_ids)


def _reason(reason: str | None) -> str | None:
    """Return the finish reason in OpenAI's terms; its clients do not know "cancelled", so the text simply ends."""
    return "stop" if reason == "cancelled" else reason


class CompletionFormat(Format):
    """The answers of /v1/completions."""

    prefix, stream_object, whole_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer, style: Style) -> None:
        super().__init__(request_id, model, tokenizer, style)
        self._offsets: dict[int, TextOffsets] = {}
        self._echoed: set[int] = set()

    def _event(self, index: int, delta: Delta) -> dict[str, Any] | None:
        text = self._echo(index) + delta.text
        if not text and not self._says_something(delta):
            return None
        return self._chunk(self._choice(index, [delta], _reason(delta.finish_reason), text=text))

    def _answer(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        written = []
        for index, deltas in choices.items():
            text = self._echo(index) + "".join(delta.text for delta in deltas)
            written.append(self._choice(index, deltas, _reason(deltas[-1].finish_reason), text=text))
        return self._whole(written, usage)

    def _echo(self, index: int) -> str:
        if not self._style.echo or index in self._echoed:
            return ""
        self._echoed.add(index)
        return self._style.echo[index]

    def _logprobs(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any] | None:
        scored = [entry for delta in deltas for entry in delta.prompt_logprobs]
        entries = scored + [entry for delta in deltas for entry in delta.logprobs]
        first = self._style.first_tokens[index] if self._style.first_tokens and index not in self._offsets else None
        if not entries and first is None:
            return None
        ids = [entry.token_id for entry in entries]
        likely: list[float | None] = [entry.logprob for entry in entries]
        others: list[dict[str, float] | None] = [{self._token(i): v for i, v in entry.top} for entry in entries]
        if first is not None:
            ids, likely, others = [first, *ids], [None, *likely], [None, *others]
        prompt = len(scored) + (first is not None)
        return {
            "tokens": [self._token(token_id) for token_id in ids],
            "token_logprobs": likely,
            "top_logprobs": others,
            "text_offset": self._text_offsets(index, ids, prompt),
        }

    def _token(self, token_id: int) -> str:
        r"""Return a token as OpenAI writes it here: its text, or `bytes:\xf0\x9f` if it is no whole character."""
        raw = self._tokenizer.token_bytes.of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + raw.decode("utf-8", "backslashreplace")

    def _text_offsets(self, index: int, token_ids: Sequence[int], prompt: int) -> list[int]:
        """Return where tokens begin in the text of the choice; the first `prompt` of them are echoed."""
        if (offsets := self._offsets.get(index)) is None:
            offsets = self._offsets[index] = TextOffsets(self._tokenizer.detokenizer())
        table = self._tokenizer.token_bytes
        out = []
        for position, token_id in enumerate(token_ids):
            # A prompt shows the special tokens that its text names, and none that the tokenizer added.
            special = table.text(token_id) if position < prompt and token_id in table.special else ""
            shown = bool(special) and self._style.echo[index].startswith(special, offsets.shown)
            out.append(offsets.next(token_id, special if shown else ""))
        return out


@dataclass(slots=True)
class _Said:
    """The state of a chat choice so far."""

    parser: ToolCallParser | None
    opened: bool = False
    ids: list[str] = field(default_factory=list)


class ChatFormat(Format):
    """The answers of /v1/chat/completions."""

    prefix, stream_object, whole_object = "chatcmpl-", "chat.completion.chunk", "chat.completion"

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer, style: Style) -> None:
        super().__init__(request_id, model, tokenizer, style)
        self._said: dict[int, _Said] = {}

    def _event(self, index: int, delta: Delta) -> dict[str, Any] | None:
        said = self._choice_said(index)
        message = self._message(said, self._events(said, delta))
        if not said.opened:
            said.opened = True
            message = {"role": "assistant", "content": self._no_content(), **message}
        elif not message and not self._says_something(delta):
            return None
        return self._chunk(self._choice(index, [delta], self._reason(said, delta), delta=message))

    def _answer(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> dict[str, Any]:
        written = []
        for index, deltas in choices.items():
            said = self._choice_said(index)
            events = [event for delta in deltas for event in self._events(said, delta)]
            message: dict[str, Any] = {"role": "assistant", "content": self._no_content(), "refusal": None}
            message |= self._message(said, events)
            for call in message.get("tool_calls", ()):
                del call["index"]
            if "tool_calls" in message and not message["content"]:
                message["content"] = None
            written.append(self._choice(index, deltas, self._reason(said, deltas[-1]), message=message))
        return self._whole(written, usage)

    def _no_content(self) -> str | None:
        """Return the content of a message before any: None where it can hold calls alone."""
        return None if self._style.forced else ""

    def _choice_said(self, index: int) -> _Said:
        if index not in self._said:
            self._said[index] = _Said(ToolCallParser(forced=self._style.forced) if self._style.tools else None)
        return self._said[index]

    def _events(self, said: _Said, delta: Delta) -> list[Event]:
        if said.parser is None:
            return [delta.text] if delta.text else []
        events = said.parser.push(delta.text) if delta.text else []
        if delta.finish_reason is None:
            return events
        return events + said.parser.finish(cut=delta.finish_reason != "stop")

    def _message(self, said: _Said, events: Sequence[Event]) -> dict[str, Any]:
        """Return the fields of a delta, or of a message, that these events make."""
        content, calls = "", list[dict[str, Any]]()
        for event in events:
            if isinstance(event, str):
                content += event
            elif isinstance(event, CallStart):
                said.ids.append("call_" + secrets.token_hex(12))
                function = {"name": event.name, "arguments": ""}
                calls.append({"index": event.index, "id": said.ids[-1], "type": "function", "function": function})
            else:
                assert isinstance(event, CallArguments)
                if not calls or calls[-1]["index"] != event.index:
                    calls.append({"index": event.index, "function": {"arguments": ""}})
                calls[-1]["function"]["arguments"] += event.text
        out: dict[str, Any] = {"content": content} if content else {}
        return out | {"tool_calls": calls} if calls else out

    def _reason(self, said: _Said, delta: Delta) -> str | None:
        if delta.finish_reason == "stop" and said.ids and not self._style.named:
            return "tool_calls"
        return _reason(delta.finish_reason)

    def _logprobs(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any] | None:
        entries = [entry for delta in deltas for entry in delta.logprobs]
        if not entries:
            return None
        return {
            "content": [
                {**self._token(e.token_id, e.logprob), "top_logprobs": [self._token(*t) for t in e.top]}
                for e in entries
            ],
            "refusal": None,
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes.of(token_id)
        return {"token": raw.decode("utf-8", "backslashreplace"), "logprob": logprob, "bytes": list(raw)}
