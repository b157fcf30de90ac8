"""What a model's contract rules out in a request. The gateway judges it before money is held, the replica again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from protocol.contracts import Logprobs
from protocol.errors import RequestRefused
from protocol.requests.bodies import AnyBody, ChatBody, EmbeddingBody, GenerationBody, untouched
from protocol.requests.checks import format_schema, logprob_count

SYSTEM_ROLES = ("system", "developer")
# Fields whose numbers a caller could move until a choice changes, and the steps per unit that they may be moved by.
_STEPS = {"presence_penalty": 20, "frequency_penalty": 20, "repetition_penalty": 20, "length_penalty": 1}


def untold(body: AnyBody, logprobs: Logprobs) -> tuple[str, str] | None:
    """Return the first field by which a body asks for probabilities that its model does not tell, and the rule.

    A bias tells them as well: moved until another token comes first, it is the distance of the two. Penalties do the
    same to tokens that were said, and `length_penalty` to whole answers, so they move in steps alone. None: the body
    asks for none of it.
    """
    if logprobs == "open" or isinstance(body, EmbeddingBody):
        return None
    if logprob_count(body) is not None:
        return "logprobs", "this model tells no log-probabilities"
    if body.confidence and logprobs != "confidence":
        return "confidence", "this model does not tell the probabilities of its answers"
    if body.logit_bias:
        return "logit_bias", "a bias would tell log-probabilities, and this model tells none"
    for name, steps in _STEPS.items():
        value = getattr(body, name)
        if value is not None and abs(value * steps - round(value * steps)) > 1e-6:
            return name, f"must be a multiple of {1 / steps:g} here, as this model tells no log-probabilities"
    return None


def contracted(
    body: GenerationBody, *, messages: str, system: str, logprobs: Logprobs, output: Mapping[str, Any] | None
) -> ChatBody:
    """Return the body as the chat that it must be under a contract. Raises RequestRefused for what is ruled out.

    messages, system, logprobs: as in a contract; output: the schema of its answers, None: free text
    """
    if not isinstance(body, ChatBody):
        raise _refusal(
            "prompt", "is not taken: this model is called through /v1/chat/completions", "contract_chat_only"
        )
    if (asked := untold(body, logprobs)) is not None:
        raise RequestRefused(f"'{asked[0]}': {asked[1]}.", code="contract_logprobs", param=asked[0])
    roles = [message.role for message in body.messages]
    if system == "refuse" and any(role in SYSTEM_ROLES for role in roles):
        raise _refusal("messages", "may hold no system message: this model brings its own", "contract_system")
    if messages == "single" and [role for role in roles if role not in SYSTEM_ROLES] != ["user"]:
        raise _refusal("messages", "must be one user message: this model reads nothing else", "contract_messages")
    if output is not None:
        answer_schema(body, output)
    return body


def answer_schema(body: ChatBody, output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of answers that follow the contract's, and the caller's within it. Raises RequestRefused.

    Whether any answer follows both is for a grammar to find.
    """
    for name in ("guided_regex", "guided_grammar", "tools"):
        if getattr(body, name):
            raise _refusal(name, "cannot be used: this model's answers have a form of their own", "contract_output")
    if body.ignore_eos:
        raise _refusal("ignore_eos", "cannot be used: nothing may follow this model's answers", "contract_output")
    wanted = (body.response_format or {}).get("type") == "json_schema"
    own, schema = format_schema(body) if wanted else None, dict(output)
    if own is None or own is True or own == schema:
        return schema
    if own is False or "$ref" in json.dumps([schema, own]):
        rule = "does not fit this model's answers: leave it out, they have a schema of their own"
        raise _refusal("response_format", rule, "contract_output")
    return {"allOf": [schema, {key: value for key, value in own.items() if key != "$schema"}]}


def cut_is_free(body: GenerationBody, *, output: Mapping[str, Any] | None, max_tokens: int) -> bool:
    """Return whether an answer to this body may be free because it is not whole: half of JSON is worth nothing.

    That is so where the contract has a schema and the caller left everything else to it: a payer who chooses anything
    that can influence the end could otherwise read an answer for nothing.
    """
    return output is not None and untouched(body, max_tokens=max_tokens)


def _refusal(param: str, rule: str, code: str) -> RequestRefused:
    return RequestRefused(f"'{param}' {rule}.", code=code, param=param)
