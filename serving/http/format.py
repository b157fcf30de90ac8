"""Completions in OpenAI's words: one class for each endpoint, both stateful only in text offsets."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from serving.core import Delta, TokenLogprob, Usage

TokenText = Callable[[int], str]


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class Format(Protocol):
    """How one endpoint writes its answers."""

    def opening(self) -> dict[str, Any] | None: ...
    def chunk(self, delta: Delta) -> dict[str, Any]: ...
    def closing(self, usage: Usage) -> dict[str, Any]: ...
    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]: ...


class _Common(ABC):
    """Envelope fields. include_usage: every chunk has a "usage" key, null but for the last."""

    prefix: str
    stream_object: str
    whole_object: str

    def __init__(
        self, request_id: str, model: str, token_text: TokenText, *, include_usage: bool, token_ids: bool
    ) -> None:
        self._token_text, self._include_usage, self._token_ids = token_text, include_usage, token_ids
        self._head = {"id": self.prefix + request_id.replace("-", ""), "created": int(time.time()), "model": model}

    def closing(self, usage: Usage) -> dict[str, Any]:
        """The chunk that carries usage and no choice."""
        return {**self._head, "object": self.stream_object, "choices": [], "usage": usage_json(usage)}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        out = {**self._head, "object": self.stream_object, "choices": [choice]}
        if self._include_usage:
            out["usage"] = None
        return out

    def _whole(self, choice: dict[str, Any], usage: Usage) -> dict[str, Any]:
        return {**self._head, "object": self.whole_object, "choices": [choice], "usage": usage_json(usage)}

    def _choice(self, deltas: Sequence[Delta], **fields: Any) -> dict[str, Any]:
        choice = {
            "index": 0,
            **fields,
            "logprobs": self._logprobs([p for d in deltas for p in d.logprobs]),
            "finish_reason": _reason(deltas[-1].finish_reason),
        }
        if self._token_ids:
            choice["token_ids"] = [token for delta in deltas for token in delta.token_ids]
        return choice

    @abstractmethod
    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """The "logprobs" of a choice in this endpoint's dialect."""


def _reason(reason: str | None) -> str | None:
    """OpenAI's clients know no "cancelled": to them the text simply ends."""
    return "stop" if reason == "cancelled" else reason


class CompletionFormat(_Common):
    """/v1/completions."""

    prefix, stream_object, whole_object = "cmpl-", "text_completion", "text_completion"
    _offset = 0

    def opening(self) -> None:
        return None

    def chunk(self, delta: Delta) -> dict[str, Any]:
        return self._chunk(self._choice([delta], text=delta.text))

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        return self._whole(self._choice(deltas, text="".join(d.text for d in deltas)), deltas[-1].usage)

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not entries:
            return None
        tokens = [self._token_text(entry.token_id) for entry in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{self._token_text(i): value for i, value in entry.top} for entry in entries],
            "text_offset": offsets,
        }


class ChatFormat(_Common):
    """/v1/chat/completions."""

    prefix, stream_object, whole_object = "chatcmpl-", "chat.completion.chunk", "chat.completion"

    def opening(self) -> dict[str, Any]:
        return self._chunk(
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        )

    def chunk(self, delta: Delta) -> dict[str, Any]:
        return self._chunk(self._choice([delta], delta={"content": delta.text} if delta.text else {}))

    def whole(self, deltas: Sequence[Delta]) -> dict[str, Any]:
        message = {"role": "assistant", "content": "".join(d.text for d in deltas)}
        return self._whole(self._choice(deltas, message=message), deltas[-1].usage)

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
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
        text = self._token_text(token_id)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
