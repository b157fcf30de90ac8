"""The contract of an adapter, applied to a request before the chat template.

It sits between a body and its prompt: instructions, defaults, the form of the answer, and what callers may not ask for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.contracts import closed_answers, cut_is_free, untold
from sealed_weights import Contract
from serving.adapters.contracts import ContractSource
from serving.core import AdapterRef
from serving.http.errors import ApiError
from serving.http.schema import ChatBody, ContentPart, GenerationBody, Message
from serving.tokenization.chat_template import ChatTemplate
from serving.tokenization.tokenizer import Tokenizer

_SYSTEM = ("system", "developer")
# Two user messages with nothing in common: what their prompts share comes from the template and the instructions.
_PROBES = ("a", "1\n")


@dataclass(frozen=True, slots=True, repr=False)
class Terms:
    """A contract, ready for this model's requests.

    prefix: the tokens that its prompts begin with
    answers: the place of each answer, where its schema allows few (`protocol.contracts.closed_answers`)
    """

    contract: Contract
    prefix: tuple[int, ...]
    answers: Mapping[str, int]

    def shared_tokens(self, prompt: Sequence[int]) -> int:
        """Return how many leading tokens of a prompt every other caller's prompt has as well."""
        return common_length(self.prefix, prompt)

    def whole_only(self, body: GenerationBody) -> bool:
        """Return whether answers to this body, as it was sent, are free when they end at their limit."""
        asked = body.max_completion_tokens if isinstance(body, ChatBody) else None
        return cut_is_free(
            has_schema=self.contract.output is not None,
            max_tokens=self.contract.max_tokens,
            asked=body.max_tokens if asked is None else asked,
            steered=bool(body.stop or body.logit_bias),
        )


class ContractDesk:
    """The contracts of one replica's adapters."""

    def __init__(self, source: ContractSource, tokenizer: Tokenizer) -> None:
        self._source, self._tokenizer = source, tokenizer

    async def terms(self, adapter: AdapterRef) -> Terms | None:
        """Return what an adapter's contract asks for; the base, blends and older packages have none.

        Raises AdapterUnavailable or AdapterRevoked.
        """
        digest = adapter.digest
        if digest is None or adapter.parts:
            return None
        known, held = self._source.contracts.find(digest)
        if not known:
            held = await asyncio.to_thread(self._source.contract, digest)
        if held is None:
            return None
        if held.prepared is None:
            held.prepared = await asyncio.to_thread(self.prepare, held.contract)
        terms: Terms = held.prepared
        return terms

    def prepare(self, contract: Contract) -> Terms:
        """Return the contract with the tokens of its instructions."""
        template = self._tokenizer.chat_template
        prefix = () if template is None else self._prefix(template, contract)
        places = {answer: place for place, answer in enumerate(closed_answers(contract.output))}
        return Terms(contract, prefix, places)

    def _prefix(self, template: ChatTemplate, contract: Contract) -> tuple[int, ...]:
        texts = [template.render([*_instructions(contract), {"role": "user", "content": probe}]) for probe in _PROBES]
        one, other = (self._tokenizer.encode(text, add_special_tokens=False) for text in texts)
        return tuple(one[: common_length(one, other)])


def _instructions(contract: Contract) -> list[dict[str, Any]]:
    return [{"role": "system", "content": contract.instructions}] if contract.instructions else []


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading elements two sequences share."""
    length = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        length += 1
    return length


def applied(body: GenerationBody, contract: Contract) -> ChatBody:
    """Return the body as the creator's contract makes it. Raises ApiError 400 for what the contract rules out."""
    if not isinstance(body, ChatBody):
        raise _refusal(
            "prompt", "is not taken: this model is called through /v1/chat/completions", "contract_chat_only"
        )
    if (asked := untold(msgspec.structs.asdict(body), contract.logprobs)) is not None:
        raise ApiError(400, f"'{asked[0]}': {asked[1]}.", code="contract_logprobs", param=asked[0])
    sampling = contract.sampling
    changes: dict[str, Any] = {name: sampling[name] for name in sampling if getattr(body, name) is None}
    if body.max_tokens is None and body.max_completion_tokens is None:
        changes["max_tokens"] = contract.max_tokens
    if contract.output is not None:
        changes["response_format"] = _format(body, dict(contract.output))
    return msgspec.structs.replace(body, messages=_messages(body, contract), **changes)


def _messages(body: ChatBody, contract: Contract) -> list[Message]:
    own = [message for message in body.messages if message.role in _SYSTEM]
    rest = [message for message in body.messages if message.role not in _SYSTEM]
    if own and contract.system == "refuse":
        raise _refusal("messages", "may hold no system message: this model brings its own", "contract_system")
    if contract.messages == "single" and [message.role for message in rest] != ["user"]:
        rule = "must be one user message: this model reads nothing else"
        raise _refusal("messages", rule, "contract_messages")
    if not contract.instructions and contract.system == "append":
        return list(body.messages)
    texts = [contract.instructions] if contract.instructions else []
    if contract.system == "append":
        texts += [_text(message) for message in own]
    system = [Message("system", "\n\n".join(text for text in texts if text))] if any(texts) else []
    return [*system, *rest]


def _text(message: Message) -> str:
    content = message.content
    if not isinstance(content, list):
        return content or ""
    if not all(isinstance(part, ContentPart) and part.type == "text" for part in content):
        raise _refusal("messages", "must be text: this model reads nothing else", "invalid_value")
    return "".join(part.text or "" for part in content)


def _format(body: ChatBody, output: dict[str, Any]) -> dict[str, Any]:
    """Return the response_format of an answer that follows the contract's schema, and the caller's within it."""
    for name in ("guided_regex", "guided_grammar", "tools"):
        if getattr(body, name):
            raise _refusal(name, "cannot be used: this model's answers have a form of their own", "contract_output")
    wanted = body.response_format or {}
    schema = output
    if wanted.get("type", "text") == "json_schema":
        described = wanted.get("json_schema")
        own = described.get("schema") if isinstance(described, dict) else None
        if not isinstance(own, dict | bool):
            raise _refusal("response_format", "must hold json_schema.schema", "invalid_value")
        if own is not True and own != output:
            schema = _both(output, own)
    elif wanted.get("type", "text") not in ("text", "json_object"):
        raise _refusal("response_format", "must be text, json_object or json_schema", "invalid_value")
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _both(output: dict[str, Any], own: dict[str, Any] | bool) -> dict[str, Any]:
    """Return the schema of answers that follow both. The grammar library refuses two that no answer follows."""
    if isinstance(own, bool) or "$ref" in json.dumps([output, own]):
        rule = "does not fit this model's answers: leave it out, they have a schema of their own"
        raise _refusal("response_format", rule, "contract_output")
    return {"allOf": [output, {key: value for key, value in own.items() if key != "$schema"}]}


def _refusal(param: str, rule: str, code: str) -> ApiError:
    return ApiError(400, f"'{param}' {rule}.", code=code, param=param)
