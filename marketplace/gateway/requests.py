"""Parse what the gateway must know of a request body; everything else is the replica's to judge.

The body itself is forwarded byte for byte, unless a policy masks it (`guarding.py`); the ticket carries its hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marketplace.gateway.bounds import MAX_EMBEDDINGS, chat_bound, prompt_bounds
from marketplace.gateway.errors import bad_request, model_named, require_fields
from marketplace.gateway.json_bodies import json_object
from protocol.latency import CLASS_OF_TIER, LatencyClass
from protocol.names import ModelName

DEFAULT_MAX_TOKENS = 512  # of a request that names no limit, for a model without a contract; documented in docs/api.md
MOST_MAX_TOKENS = 1_000_000
MAX_CHOICES = 128  # completions of one request, over all its prompts
MAX_END_USER = 64  # characters, as OpenAI's `safety_identifier`
END_USER_HEADER = "x-intarsia-end-user"
ON_BUDGET_HEADER = "x-intarsia-on-budget"

OnBudget = Literal["refuse", "stop"]


@dataclass(frozen=True)
class PredictionRequest:
    """The priced part of a completion request.

    `max_tokens`: of one completion; None: the request names no limit. `choices`: completions of each prompt, or
    beams, that are computed: all of them are paid for, whatever is returned.
    `prompt_token_bounds`: for each prompt, an upper bound of its tokens (`marketplace.gateway.bounds`).
    `end_user`: the caller's name for whom it asks; its spending is counted and limited by that name.
    `on_budget`: whether a budget that cannot pay the worst case refuses the request, or stops the answer where it ends.
    `embedding`: vectors are wanted, no text.
    `steered`: a stop string or a bias ends the answer where the caller wants.
    `logprobs`: the field that asks for log-probabilities; None: none does. `beside_logprobs`: fields that make them
    worth more.
    """

    model: ModelName
    stream: bool
    include_usage: bool
    max_tokens: int | None
    choices: int
    prompt_token_bounds: tuple[int, ...]
    latency_class: LatencyClass = "standard"
    end_user: str | None = None
    on_budget: OnBudget = "refuse"
    embedding: bool = False
    steered: bool = False
    logprobs: str | None = None
    beside_logprobs: tuple[str, ...] = ()

    def worst_prompt_tokens(self, context_length: int, instruction_tokens: int = 0) -> int:
        """Return the most prompt tokens that a model of this context can be made to read: a prompt counts once.

        `instruction_tokens` are those that the model's contract puts before each chat.
        """
        return sum(min(bound + instruction_tokens, context_length) for bound in self.prompt_token_bounds)

    @property
    def completions(self) -> int:
        return len(self.prompt_token_bounds) * self.choices

    def worst_tokens(self, context_length: int, default: int = DEFAULT_MAX_TOKENS) -> int:
        """Return the most tokens that can be generated, over all completions of all prompts.

        `default` is the model's limit of one completion, for a request that names none.
        """
        return self.completions * min(default if self.max_tokens is None else self.max_tokens, context_length)


def parse_prediction_request(
    body: bytes, headers: Mapping[bytes, bytes], *, chat: bool, embedding: bool = False
) -> PredictionRequest:
    """Raises Refusal 400 naming the field or header."""
    data = json_object(body)
    require_fields("embeddings" if embedding else "chat" if chat else "completions", data)
    if embedding:
        return _embedding_request(data, headers)
    options = data.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad_request("`stream_options` must be an object.", "stream_options")
    bounds = (chat_bound(data),) if chat else prompt_bounds(data.get("prompt"))
    choices = _choices(data)
    if choices * len(bounds) > MAX_CHOICES:
        raise bad_request(f"A request may make at most {MAX_CHOICES} completions, over all its prompts.", "n")
    return PredictionRequest(
        model=model_named(data.get("model")),
        stream=_boolean(data, "stream"),
        include_usage=_boolean(options, "include_usage"),
        max_tokens=_max_tokens(data, least=0 if not chat and data.get("echo") is True else 1),
        choices=choices,
        prompt_token_bounds=bounds,
        latency_class=_latency_class(data),
        end_user=_end_user(data, headers),
        on_budget=_on_budget(headers),
        steered=bool(data.get("stop") or data.get("logit_bias")),
        logprobs=_logprobs(data),
        beside_logprobs=tuple(name for name in ("echo", "logit_bias") if data.get(name)),
    )


def _embedding_request(data: dict[str, Any], headers: Mapping[bytes, bytes]) -> PredictionRequest:
    return PredictionRequest(
        model=model_named(data.get("model")),
        stream=False,
        include_usage=False,
        max_tokens=0,
        choices=1,
        prompt_token_bounds=prompt_bounds(data.get("input"), field="input", most=MAX_EMBEDDINGS),
        latency_class=_latency_class(data),
        end_user=_end_user(data, headers),
        on_budget="refuse",
        embedding=True,
    )


def _latency_class(data: dict[str, Any]) -> LatencyClass:
    tier = data.get("service_tier")
    if tier is not None and (not isinstance(tier, str) or tier not in CLASS_OF_TIER):
        raise bad_request("`service_tier` must be auto, default, flex or priority.", "service_tier")
    return CLASS_OF_TIER[tier]


def _end_user(data: dict[str, Any], headers: Mapping[bytes, bytes]) -> str | None:
    """Return whom the caller asks for: the header's word before that of the body."""
    names = {END_USER_HEADER: headers.get(END_USER_HEADER.encode())}
    names |= {name: data.get(name) for name in ("safety_identifier", "user")}
    for where, value in names.items():
        if value is None:
            continue
        # Bytes that are no UTF-8 become characters that are not printable.
        name = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_END_USER or not name.isprintable():
            message = f"`{where}` must be 1 to {MAX_END_USER} printable characters."
            raise bad_request(message, where, code="invalid_end_user")
        return name
    return None


def _on_budget(headers: Mapping[bytes, bytes]) -> OnBudget:
    match headers.get(ON_BUDGET_HEADER.encode(), b"refuse"):
        case b"refuse":
            return "refuse"
        case b"stop":
            return "stop"
    raise bad_request(f"`{ON_BUDGET_HEADER}` must be refuse or stop.", ON_BUDGET_HEADER)


def _logprobs(data: dict[str, Any]) -> str | None:
    """Return the field that asks for log-probabilities: 0 alternatives are a token's own, in a completion."""
    asked = data.get("logprobs")
    if asked is not None and asked is not False:
        return "logprobs"
    return "top_logprobs" if data.get("top_logprobs") else None


def _choices(data: dict[str, Any]) -> int:
    n = data.get("n")
    n = 1 if n is None else n
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_CHOICES:
        raise bad_request(f"`n` must be an integer from 1 to {MAX_CHOICES}.", "n")
    computed = data.get("best_of")
    computed = n if computed is None else computed
    if not isinstance(computed, int) or isinstance(computed, bool) or not n <= computed <= MAX_CHOICES:
        raise bad_request(f"`best_of` must be an integer from `n` to {MAX_CHOICES}: all are paid for.", "best_of")
    return computed


def _boolean(data: dict[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(f"`{name}` must be true or false.", name)
    return value


def _max_tokens(data: dict[str, Any], *, least: int) -> int | None:
    """Return the limit of one completion; None: the request names none; 0: a prompt is echoed only to be scored."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = data.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_MAX_TOKENS:
            raise bad_request(f"`{name}` must be an integer from {least} to {MOST_MAX_TOKENS:,}.", name)
        return value
    return None
