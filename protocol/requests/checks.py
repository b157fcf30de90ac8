"""Every rule that a request body can break by itself: ranges, forms, and fields that exclude each other."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from protocol.errors import RequestRefused, require
from protocol.latency import CLASS_OF_TIER
from protocol.requests.bodies import (
    AnyBody,
    ChatBody,
    CompletionBody,
    ContentPart,
    EmbeddingBody,
    GenerationBody,
    Message,
    NamedChoice,
)

MAX_CHOICES = 128  # completions of one request, over all its prompts
MAX_PROMPTS = 128
MAX_INPUTS = 2048  # texts of one request for embeddings, as in OpenAI's API
MAX_TOKENS = 1_000_000
MAX_STOPS, MAX_STOP_CHARS, MAX_LOGPROBS, MAX_BIASES = 16, 256, 20, 1024
MAX_BEAMS = 8
MAX_LENGTH_PENALTY = 10.0
MAX_TOOLS = 128
MAX_GRAMMAR_CHARS = 1 << 16
MAX_END_USER = 64  # characters, as OpenAI's `safety_identifier`
MAX_SEED = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_MAX_TOKEN_ID = 2**31 - 1
# Fields that decide on single tokens, and their values that change nothing: a beam search decides on whole texts.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "temperature": (None, 0),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "stop": (None, "", []),
}


def check(body: AnyBody) -> None:
    """Raise RequestRefused, which names the first field at fault."""
    require(body.service_tier in CLASS_OF_TIER, "service_tier", "must be auto, default, flex or priority")
    for name in ("safety_identifier", "user"):
        require_end_user(getattr(body, name), name)
    if isinstance(body, EmbeddingBody):
        require(body.encoding_format in ("float", "base64"), "encoding_format", "must be float or base64")
        prompts_of(body.input, "input", MAX_INPUTS)
        return
    _check_form(body)
    _check_numbers(body)
    if body.use_beam_search:
        _check_beams(body)
    else:
        for name in ("length_penalty", "early_stopping"):
            require(getattr(body, name) is None, name, "needs use_beam_search")
    if isinstance(body, ChatBody):
        _check_messages(body.messages)
        _check_tools(body)
        prompts = 1
    else:
        prompts = len(prompts_of(body.prompt, "prompt", MAX_PROMPTS))
    _check_format(body)
    rule = f"makes more than {MAX_CHOICES} completions of these prompts"
    require(prompts * body.computed <= MAX_CHOICES, "n" if body.best_of is None else "best_of", rule)


def require_end_user(name: object, where: str) -> None:
    """Raise RequestRefused unless it is None, or a name of at most MAX_END_USER printable characters."""
    fine = name is None or (isinstance(name, str) and 1 <= len(name) <= MAX_END_USER and name.isprintable())
    if not fine:
        rule = f"'{where}' must be 1 to {MAX_END_USER} printable characters."
        raise RequestRefused(rule, code="invalid_end_user", param=where)


def prompts_of(value: Any, param: str, most: int) -> list[str | list[int]]:
    """Return the prompts of a text, token ids, or a list of either.

    Raises RequestRefused for an empty one, too many of them, or a mixture within one.
    """
    if isinstance(value, list) and value and all(isinstance(one, str | list) for one in value):
        require(len(value) <= most, param, f"must hold at most {most:,} prompts")
        several = value
    else:
        several = [value]
    rule = "must be non-empty text, a list of token ids, or a list of those"
    require(all(map(_is_prompt, several)), param, rule)
    return several


def _is_prompt(one: object) -> bool:
    if isinstance(one, list):
        return bool(one) and all(type(token) is int and 0 <= token <= _MAX_TOKEN_ID for token in one)
    return isinstance(one, str) and bool(one)


def _check_form(body: GenerationBody) -> None:
    require(body.stream_options is None or bool(body.stream), "stream_options", "is only allowed when stream is true")
    require(1 <= body.choices <= MAX_CHOICES, "n", f"must be from 1 to {MAX_CHOICES}")
    rule = f"must be from n to {MAX_CHOICES}: all are paid for"
    require(body.choices <= body.computed <= MAX_CHOICES, "best_of", rule)
    rule = "cannot be combined with use_beam_search, or a best_of above n: the best are known at the end alone"
    require(not (body.stream and body.chooses), "stream", rule)
    if isinstance(body, ChatBody):
        require(body.modalities in (None, ["text"]), "modalities", "must be text")


def _check_numbers(body: GenerationBody) -> None:
    scored = isinstance(body, CompletionBody) and bool(body.echo)
    least, rule = (0, "from 0, with echo,") if scored else (1, "from 1")
    for name in ("max_completion_tokens", "max_tokens"):
        limit = getattr(body, name, None)
        fine = limit is None or least <= limit <= MAX_TOKENS
        require(fine, name, f"must be an integer {rule} to {MAX_TOKENS:,}")
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    fine = len(stop) <= MAX_STOPS and all(0 < len(one) <= MAX_STOP_CHARS for one in stop)
    require(fine, "stop", f"must be at most {MAX_STOPS} strings of 1 to {MAX_STOP_CHARS} characters")
    fine = body.top_k is None or -1 <= body.top_k <= _MAX_TOKEN_ID
    require(fine, "top_k", "must be at least 1; 0 or -1 switch it off")
    require(body.seed is None or -MAX_SEED <= body.seed <= MAX_SEED, "seed", "must be an integer of 64 bits")
    _require_between(body, "temperature", 0, 2)
    _require_between(body, "top_p", 0, 1)
    _require_between(body, "min_p", 0, 1)
    _require_between(body, "presence_penalty", -2, 2)
    _require_between(body, "frequency_penalty", -2, 2)
    penalty = body.repetition_penalty
    require(penalty is None or 0 < penalty <= 10, "repetition_penalty", "must be above 0 and at most 10")
    biases = body.logit_bias or {}
    require(len(biases) <= MAX_BIASES, "logit_bias", f"must name at most {MAX_BIASES} tokens")
    for token, bias in biases.items():
        require(token.isascii() and token.isdecimal() and len(token) < 10, "logit_bias", "must map token ids")
        require(math.isfinite(bias) and -100 <= bias <= 100, "logit_bias", "must be between -100 and 100")
    logprob_count(body)


def _require_between(body: GenerationBody, name: str, least: float, most: float) -> None:
    value = getattr(body, name)
    require(value is None or least <= value <= most, name, f"must be between {least} and {most}")


def logprob_count(body: GenerationBody) -> int | None:
    """Return how many alternatives a body asks for; None: no log-probabilities. Raises RequestRefused."""
    if isinstance(body, CompletionBody):
        count, name = body.logprobs, "logprobs"
    else:
        require(not body.top_logprobs or bool(body.logprobs), "top_logprobs", "needs logprobs to be true")
        count, name = (body.top_logprobs or 0) if body.logprobs else None, "top_logprobs"
    require(count is None or 0 <= count <= MAX_LOGPROBS, name, f"must be between 0 and {MAX_LOGPROBS}")
    return count


def _check_beams(body: GenerationBody) -> None:
    for name, neutral in _NEUTRAL.items():
        require(getattr(body, name) in neutral, name, "cannot be combined with use_beam_search")
    beams = "best_of" if body.best_of is not None else "n"
    require(2 <= body.computed <= MAX_BEAMS, beams, f"must be from 2 to {MAX_BEAMS} with use_beam_search")
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    within = math.isfinite(penalty) and abs(penalty) <= MAX_LENGTH_PENALTY
    require(within, "length_penalty", f"must be between {-MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}")
    early = body.early_stopping
    require(
        early is None or isinstance(early, bool) or early == "never", "early_stopping", "must be true, false or never"
    )
    require(body.max_tokens != 0, "max_tokens", "must be at least 1 with use_beam_search")


def _check_messages(messages: list[Message]) -> None:
    """Everything that an answer of this server can hold is taken back."""
    require(bool(messages), "messages", "must hold at least one message")
    for index, message in enumerate(messages):
        at = f"messages[{index}]"
        require(message.role in _ROLES, f"{at}.role", "must be system, user, assistant or tool")
        own = message.role == "assistant"  # what guards judge of others' messages is their text
        if isinstance(message.content, list):
            texts = [_part_text(part, refusals=own) for part in message.content]
            require(None not in texts, f"{at}.content", "must be text: this model reads nothing else")
        require(own or not message.refusal, f"{at}.refusal", "belongs to the assistant")
        require(not message.audio, f"{at}.audio", "is not supported: this model reads nothing but text")
        require(own or not message.tool_calls, f"{at}.tool_calls", "belongs to the assistant")
        if message.function_call is not None:
            require(own, f"{at}.function_call", "belongs to the assistant")
            require(not message.tool_calls, f"{at}.function_call", "cannot be combined with tool_calls")


def _part_text(part: ContentPart, *, refusals: bool) -> str | None:
    """Return the text of a part; None: it is none, or a refusal where none may be."""
    if part.type == "refusal" and refusals:
        return part.refusal
    return part.text if part.type == "text" else None


def _check_tools(body: ChatBody) -> None:
    choice = body.tool_choice
    if not body.tools:
        require(choice in (None, "none", "auto"), "tool_choice", "needs tools")
        return
    require(len(body.tools) <= MAX_TOOLS, "tools", f"must be at most {MAX_TOOLS}")
    for index, spec in enumerate(body.tools):
        require(spec.type == "function", f"tools[{index}].type", "must be function")
        fine = _NAME.fullmatch(spec.function.name) is not None
        require(fine, f"tools[{index}].function.name", "must be 1 to 64 letters, digits, '_', '.' or '-'")
    names = [spec.function.name for spec in body.tools]
    require(len(set(names)) == len(names), "tools", "must have distinct names")
    if isinstance(choice, NamedChoice):
        require(choice.type == "function", "tool_choice", "must name a function")
        require(choice.function.name in names, "tool_choice", "names a function that is not among the tools")
        return
    require(choice in (None, "none", "auto", "required"), "tool_choice", "must be none, auto, required, or a function")


def _check_format(body: GenerationBody) -> None:
    """Check which form the answer is to have, and that it is one alone; a grammar itself is compiled later."""
    guided = [name for name in ("guided_regex", "guided_grammar") if getattr(body, name) is not None]
    wanted = [*guided, *(["response_format"] if wants_format(body) else [])]
    if len(wanted) > 1:
        require(False, wanted[-1], f"cannot be combined with {wanted[0]}")
    for name in guided:
        _require_short(getattr(body, name), name)
    if guided:
        rule = "cannot be combined with tools that may be called; set tool_choice to none"
        require(not _may_call(body), guided[0], rule)
    schema = format_schema(body)
    if schema is not None:
        _require_short(json.dumps(schema, ensure_ascii=False), "response_format")
    rule = "cannot be combined with a constrained output: nothing may follow its end"
    require(not (body.ignore_eos and (wanted or binds_calls(body))), "ignore_eos", rule)


def _require_short(grammar: str, param: str) -> None:
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"'{param}' cannot be used: it is longer than {MAX_GRAMMAR_CHARS} characters."
        raise RequestRefused(message, code="invalid_grammar", param=param)


def _may_call(body: GenerationBody) -> bool:
    return isinstance(body, ChatBody) and bool(body.tools) and body.tool_choice != "none"


def binds_calls(body: GenerationBody) -> bool:
    """Return whether calls must follow a grammar: else a model that is free to call is free in what it writes."""
    if not isinstance(body, ChatBody) or not _may_call(body):
        return False
    strict = any(spec.function.strict for spec in body.tools or ())
    return body.tool_choice not in (None, "auto") or body.parallel_tool_calls is False or strict


def wants_format(body: GenerationBody) -> bool:
    """Return whether a body has a response_format other than text."""
    return (body.response_format or {}).get("type", "text") != "text"


def format_schema(body: GenerationBody) -> dict[str, Any] | bool | None:
    """Return the JSON schema that a body's response_format asks for; None: it asks for none. Raises RequestRefused."""
    wanted = body.response_format or {}
    match wanted.get("type", "text"):
        case "text":
            return None
        case "json_object":
            return {"type": "object"}
        case "json_schema":
            described = wanted.get("json_schema")
            schema = described.get("schema") if isinstance(described, dict) else None
            require(isinstance(schema, dict | bool), "response_format", "must hold json_schema.schema")
            assert isinstance(schema, dict | bool)
            return schema
    raise RequestRefused("'response_format' must be text, json_object or json_schema.", param="response_format")
