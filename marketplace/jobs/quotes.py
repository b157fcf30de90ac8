"""The cost of a file of requests before any is made: at most, and typically."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from billing.pricing import Price, cost_nano_usd, worst_case_nano_usd
from billing.typical_calls import TypicalCall, typical_call
from marketplace.accounts.models import Organization
from marketplace.catalog import selectors as catalog
from marketplace.catalog.models import Version
from marketplace.jobs.content import read_file
from marketplace.jobs.lines import Line, numbered, parse_line
from marketplace.jobs.models import File
from marketplace.vault.ciphers import cipher_of
from protocol.names import parse_model_name

LATENCY_CLASS = "batch"
DEFAULT_MAX_TOKENS = 512  # of an answer whose line and model name no limit
_TEMPLATE_TOKENS, _PER_MESSAGE = 256, 16  # of a chat template, at most
_TOOLS_TOKENS, _WIDEST = 1024, 8  # a template writes functions with instructions, indented


@dataclass(frozen=True, slots=True)
class Quote:
    """The cost of a file at the class batch. `unknown`: lines whose model is not for sale, which will cost nothing.

    `typical_nano_usd` is None where too few calls of a model were measured. `largest_nano_usd` is the most that one
    line can cost: so much has to be free for it while it runs.
    """

    lines: int
    worst_nano_usd: int
    typical_nano_usd: int | None
    largest_nano_usd: int
    unknown: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Terms:
    price: Price
    context_length: int
    instruction_tokens: int
    max_tokens: int
    typical: TypicalCall | None


def quote_file(*, organization: Organization, file: File) -> Quote:
    """Return what the lines of a file would cost the organization now, without what a creator gives for free."""
    cipher = cipher_of(organization.pk)
    lines = (parse_line(number, raw) for number, raw in numbered(read_file(cipher, file)))
    return _sum(lines, lambda name, url: _terms(organization, name, url))


def _sum(lines: Iterable[Line], terms_of: Callable[[str, str], _Terms | None]) -> Quote:
    known: dict[str, _Terms | None] = {}
    count = worst = largest = unknown = typical = 0
    measured = True
    for line in lines:
        count += 1
        if line.model not in known:
            known[line.model] = terms_of(line.model, line.url)
        terms = known[line.model]
        if terms is None:
            unknown += 1
            continue
        prompt, answer = _most_tokens(line, terms)
        most = worst_case_nano_usd(terms.price, prompt, answer)
        worst, largest = worst + most, max(largest, most)
        if terms.typical is None:
            measured = False
        else:
            typical += min(most, cost_nano_usd(terms.price, terms.typical.usage))
    usual = typical if measured and count > unknown else None
    return Quote(count, worst, usual, largest, unknown, tuple(sorted(known)))


def _terms(organization: Organization, name: str, url: str) -> _Terms | None:
    parsed = parse_model_name(name)
    model = catalog.visible_model(org_slug=parsed.organization, slug=parsed.slug, viewer=organization)
    version = catalog.published_version(org_slug=parsed.organization, slug=parsed.slug, number=parsed.version)
    price = None if version is None else catalog.price_of(version=version)
    if model is None or version is None or price is None:
        return None
    embedding = url == "/v1/embeddings"
    rate = price.embedding_micro_usd_per_mtok
    if embedding and rate is None:
        return None
    point = price.point(LATENCY_CLASS)
    if embedding and rate is not None:
        point = Price(rate, rate, 0, point.per_prediction_nano_usd, point.class_bps)
    contract: dict[str, Any] = {} if embedding else version.contract or {}
    return _Terms(
        price=point,
        context_length=model.base_model.context_length,
        instruction_tokens=int(contract.get("instruction_tokens", 0)),
        max_tokens=int(contract.get("max_tokens", DEFAULT_MAX_TOKENS)),
        typical=None if embedding else _typical(version),
    )


def _typical(version: Version) -> TypicalCall | None:
    return typical_call(creator_organization_id=version.model.organization_id, version_id=version.pk)


def _most_tokens(line: Line, terms: _Terms) -> tuple[int, int]:
    """Return the most prompt tokens and completion tokens of a line.

    A byte-level vocabulary spends at least a byte on a token, and a text is never longer than its JSON.
    """
    body: dict[str, Any] = orjson.loads(line.body)
    messages, several = body.get("messages"), body.get("prompt", body.get("input"))
    prompts = len(several) if isinstance(several, list) and several and isinstance(several[0], str | list) else 1
    tokens = len(line.body) + _TEMPLATE_TOKENS + terms.instruction_tokens * prompts
    if isinstance(messages, list):
        tokens += _PER_MESSAGE * len(messages)
    if tools := body.get("tools"):
        tokens += _TOOLS_TOKENS + _WIDEST * len(orjson.dumps(tools))
    prompt = min(tokens, prompts * terms.context_length)
    if line.url == "/v1/embeddings":
        return prompt, 0
    choices = body.get("n")
    asked = body.get("max_completion_tokens", body.get("max_tokens"))
    answer = asked if isinstance(asked, int) else terms.max_tokens
    each = min(max(0, answer), terms.context_length)
    return prompt, prompts * (choices if isinstance(choices, int) and choices > 0 else 1) * each
