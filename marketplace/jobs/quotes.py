"""The cost of a file of requests before any is made: at most, and typically."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import orjson
from django.core.cache import cache

from billing.pricing import Price, cost_nano_usd, worst_case_nano_usd
from billing.typical_calls import TypicalCall, typical_call
from marketplace.accounts.models import Organization
from marketplace.catalog import selectors as catalog
from marketplace.jobs.content import read_file
from marketplace.jobs.errors import TooManyModels
from marketplace.jobs.lines import Line, numbered, parse_line
from marketplace.jobs.models import File
from marketplace.vault.ciphers import cipher_of
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

LATENCY_CLASS = "batch"
KEPT_SECONDS = 600  # a typical cost may be as old as this; the worst case is always of the prices in force
MAX_MODELS = 200  # of one file: each is looked up
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
    """All of a version that the worst case of a line follows from."""

    version_id: UUID
    creator_organization_id: UUID
    price: Price
    context_length: int
    instruction_tokens: int
    max_tokens: int
    measured: bool  # whether usual calls of it say something about the lines


def quote_file(*, organization: Organization, file: File) -> Quote:
    """Return what the lines of a file would cost the organization now, without what a creator gives for free.

    Lines never change, so they are read again only after the terms of one of their models did, or ten minutes. Raises
    TooManyModels.
    """
    key = f"jobs:quote:{organization.pk.hex}:{file.pk.hex}"
    kept = cache.get(key)
    if kept is not None:
        fields, digest = kept
        if digest == _digest({name: _terms(organization, name, file.endpoint) for name in fields["models"]}):
            return Quote(**fields)
    cipher = cipher_of(organization.pk)
    known: dict[str, _Terms | None] = {}

    def terms_of(name: str) -> _Terms | None:
        if name not in known:
            if len(known) == MAX_MODELS:
                raise TooManyModels(f"the lines of a file name at most {MAX_MODELS} models", field="input_file_id")
            known[name] = _terms(organization, name, file.endpoint)
        return known[name]

    quote = _sum((parse_line(number, raw) for number, raw in numbered(read_file(cipher, file))), terms_of)
    cache.set(key, (asdict(quote), _digest(known)), KEPT_SECONDS)
    return quote


def _digest(terms: dict[str, _Terms | None]) -> str:
    return hashlib.sha256(repr(sorted(terms.items(), key=lambda item: item[0])).encode()).hexdigest()


def _sum(lines: Iterable[Line], terms_of: Callable[[str], _Terms | None]) -> Quote:
    usual: dict[UUID, TypicalCall | None] = {}
    names: set[str] = set()
    count = worst = largest = unknown = typical = 0
    measured = True
    for line in lines:
        count += 1
        names.add(line.model)
        terms = terms_of(line.model)
        if terms is None:
            unknown += 1
            continue
        prompt, answer = _most_tokens(line, terms)
        most = worst_case_nano_usd(terms.price, prompt, answer)
        worst, largest = worst + most, max(largest, most)
        if terms.version_id not in usual:
            usual[terms.version_id] = _typical(terms)
        call = usual[terms.version_id]
        if call is None:
            measured = False
        else:
            typical += min(most, cost_nano_usd(terms.price, call.usage))
    all_typical = typical if measured and count > unknown else None
    return Quote(count, worst, all_typical, largest, unknown, tuple(sorted(names)))


def _terms(organization: Organization, name: str, url: str) -> _Terms | None:
    try:
        parsed = parse_model_name(name)
    except ProtocolError:
        return None
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
        version_id=version.pk,
        creator_organization_id=version.model.organization_id,
        price=point,
        context_length=model.base_model.context_length,
        instruction_tokens=int(contract.get("instruction_tokens", 0)),
        max_tokens=int(contract.get("max_tokens", DEFAULT_MAX_TOKENS)),
        measured=not embedding,
    )


def _typical(terms: _Terms) -> TypicalCall | None:
    if not terms.measured:
        return None
    return typical_call(creator_organization_id=terms.creator_organization_id, version_id=terms.version_id)


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
    asked = body.get("max_completion_tokens", body.get("max_tokens"))
    answer = asked if isinstance(asked, int) else terms.max_tokens
    each = min(max(0, answer), terms.context_length)
    counts = [count for count in (body.get("n"), body.get("best_of")) if isinstance(count, int)]
    return prompt, prompts * max([1, *counts]) * each
