"""Upper bounds of an answer's bytes, from the request alone: one that could not be sent is refused before any work."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from protocol.bodies import MAX_ANSWER_BYTES, MAX_EVENT_BYTES
from protocol.requests.bodies import CompletionBody, GenerationBody
from protocol.requests.checks import MAX_LOGPROBS
from serving.core import Request
from serving.http.errors import ApiError
from serving.http.prompts import Prompt
from serving.tokenization.tokenizer import Tokenizer

# A token's logprob is at most 25 characters long, its offset 10; names, quotes and brackets of its entry are in these.
_CHAT_ENTRY, _COMPLETION_ENTRY, _ALTERNATIVE = 128, 64, 32
_TOKEN_ID = 8
_CHOICE, _ENVELOPE = 512, 4096
# The text that one event may release at once: a stop string or the beginning of a call was held back until then.
_HELD = 64 << 10


@dataclass(frozen=True, slots=True)
class _Widths:
    """Bytes of a vocabulary's tokens as JSON. `widest` are those of the widest tokens, the widest first.

    listed: the same with the token's bytes as a list of numbers beside it, as a chat has them
    """

    widest: tuple[int, ...]
    listed: tuple[int, ...]


class AnswerSizes:
    """The bounds for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab_size
        self._widths: _Widths | None = None

    async def check(self, body: GenerationBody, prompts: Sequence[Prompt], requests: Sequence[Request]) -> None:
        """Raise ApiError 422 if an event of a stream, or a whole answer, could be larger than a gateway reads."""
        if self._widths is None:
            self._widths = await asyncio.to_thread(self._measure)
        widths, each = self._widths, len(requests) // len(prompts)
        before = [self._before(widths, body, prompt) for prompt in prompts]
        token = self._per_token(widths, body)
        if body.stream:
            size, most, unit = max(before) + token + _HELD, MAX_EVENT_BYTES, "An event of the answer"
            advice = "a shorter prompt, fewer logprobs, or no stream"
        else:
            limits = [request.max_tokens for request in requests[::each]]
            size = sum(body.choices * (first + limit * token) for first, limit in zip(before, limits, strict=True))
            most, unit, advice = MAX_ANSWER_BYTES, "The answer", "fewer tokens, choices or logprobs"
        if size + _ENVELOPE > most:
            raise ApiError(
                422,
                f"{unit} could be {size + _ENVELOPE} bytes long, at most {most} can be sent: ask for {advice}.",
                code="answer_too_large",
            )

    def _before(self, widths: _Widths, body: GenerationBody, prompt: Prompt) -> int:
        """Return the bytes of a choice without its generated tokens: frame and echo."""
        size = _CHOICE + _width(body.model.encode())
        if not isinstance(body, CompletionBody) or not body.echo:
            return size
        table = self._tokenizer.token_bytes
        spelled = sum(_width(table.of(token)) for token in prompt.token_ids)
        size += spelled if prompt.text is None else _width(prompt.text.encode("utf-8", "replace"))
        if body.logprobs is not None:
            size += spelled + len(prompt.token_ids) * (_COMPLETION_ENTRY + _others(widths.widest, body.logprobs))
        return size

    @staticmethod
    def _per_token(widths: _Widths, body: GenerationBody) -> int:
        """Return the most bytes that one generated token adds."""
        size = widths.widest[0] + (_TOKEN_ID if body.return_token_ids else 0)
        if isinstance(body, CompletionBody):
            if body.logprobs is not None:
                size += _COMPLETION_ENTRY + widths.widest[0] + _others(widths.widest, body.logprobs)
        elif body.logprobs:
            alternatives = sum(listed + _CHAT_ENTRY for listed in widths.listed[: body.top_logprobs or 0])
            size += _CHAT_ENTRY + widths.listed[0] + alternatives
        return size

    def _measure(self) -> _Widths:
        raws = [self._tokenizer.token_bytes.of(token) for token in range(self._vocab)]
        widest = heapq.nlargest(MAX_LOGPROBS, (_width(raw) for raw in raws))
        listed = heapq.nlargest(MAX_LOGPROBS, (_width(raw) + 4 * len(raw) for raw in raws))
        return _Widths(tuple(widest), tuple(listed))


def _others(widest: tuple[int, ...], count: int) -> int:
    return sum(width + _ALTERNATIVE for width in widest[:count])


def _width(raw: bytes) -> int:
    return len(msgspec.json.encode(raw.decode("utf-8", "backslashreplace"))) + len("bytes:")
