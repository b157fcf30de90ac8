"""The contract of an adapter, applied to a request before the chat template.

It sits between a body and its prompt: instructions, defaults, the form of the answer, and what callers may not ask for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.contracts import closed_answers
from protocol.requests.bodies import ChatBody, GenerationBody, Message
from protocol.requests.contracted import SYSTEM_ROLES, answer_schema, contracted, cut_is_free
from sealed_weights import Contract
from serving.adapters.contracts import ContractSource
from serving.core import AdapterRef
from serving.http.prompts import text_of
from serving.tokenization.chat_template import ChatTemplate
from serving.tokenization.tokenizer import Tokenizer

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

    def whole_schema(self, body: GenerationBody) -> Mapping[str, Any] | None:
        """Return the schema that answers to this body, as it was sent, must be whole by, or be free; None: none."""
        output = self.contract.output
        return output if cut_is_free(body, output=output, max_tokens=self.contract.max_tokens) else None


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
    """Return the body as the creator's contract makes it. Raises RequestRefused for what the contract rules out."""
    output = contract.output
    chat = contracted(
        body, messages=contract.messages, system=contract.system, logprobs=contract.logprobs, output=output
    )
    sampling = contract.sampling
    changes: dict[str, Any] = {name: sampling[name] for name in sampling if getattr(chat, name) is None}
    if chat.max_tokens is None and chat.max_completion_tokens is None:
        changes["max_tokens"] = contract.max_tokens
    if output is not None:
        described = {"schema": answer_schema(chat, output)}
        changes["response_format"] = {"type": "json_schema", "json_schema": described}
    return msgspec.structs.replace(chat, messages=_messages(chat, contract), **changes)


def _messages(body: ChatBody, contract: Contract) -> list[Message]:
    own = [message for message in body.messages if message.role in SYSTEM_ROLES]
    rest = [message for message in body.messages if message.role not in SYSTEM_ROLES]
    if not contract.instructions and contract.system == "append":
        return list(body.messages)
    texts = [contract.instructions] if contract.instructions else []
    if contract.system == "append":
        texts += [text_of(message) for message in own]
    system = [Message("system", "\n\n".join(text for text in texts if text))] if any(texts) else []
    return [*system, *rest]
