"""The checks of one version or listing, with their inputs from the database."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import Q, QuerySet

from billing.pricing import TokenUsage
from marketplace.catalog import selectors as catalog
from marketplace.catalog.call_price import example_message, usual_call
from marketplace.catalog.copying import copy_price_of
from marketplace.catalog.models import Evaluation, Model, Version
from marketplace.publishing.checks.cards import card_findings
from marketplace.publishing.checks.findings import Finding, not_accepted
from marketplace.publishing.checks.lineage import Known, lineage_findings
from marketplace.publishing.checks.names import Name, name_findings
from marketplace.publishing.checks.quality import (
    Score,
    change_findings,
    example_findings,
    price_findings,
    score_findings,
)
from marketplace.publishing.models import Sketch
from marketplace.publishing.selectors import accepted_findings
from protocol.contracts import EXAMPLES_KEY
from protocol.reference import REFERENCE_KEY

State = Version.State
USUAL_CALL = TokenUsage(prompt_tokens=256, cached_tokens=0, completion_tokens=32)  # prices are compared by it


def new_findings(findings: list[Finding], model: Model) -> list[Finding]:
    """Return the findings that no person has accepted for this model yet."""
    return not_accepted(findings, accepted_findings(model)) if findings else []


def inspect_version(version: Version, model: Model) -> list[Finding]:
    """Return what the checks of the version itself find: weights, examples, change, score and price."""
    return [
        *lineage(version, model),
        *example_findings(version.report.get(EXAMPLES_KEY)),
        *change_findings(version.report.get(REFERENCE_KEY)),
        *score_findings(*_scores(version)),
        *price_findings(*_copy_price(version, model)),
    ]


def lineage(version: Version, model: Model) -> list[Finding]:
    """Return a finding if the version's weights are another organization's, which were here before.

    The organization's own weights and those of its declared sources are no copies; nor is a later version of others.
    """
    own = Sketch.objects.filter(version=version).first()
    if own is None:
        return lineage_findings(None, []) if version.package_digest else []
    same_base = Sketch.objects.filter(version__model__base_model=model.base_model_id, created_at__lt=own.created_at)
    is_ours = Q(version__model__organization=model.organization_id) | Q(
        version__model__in=model.sources.values("upstream")
    )
    return lineage_findings(bytes(own.values), _known(same_base.exclude(is_ours)), _known(same_base.filter(is_ours)))


def _known(sketches: QuerySet[Sketch]) -> list[Known]:
    rows = sketches.values_list(
        "version_id",
        "values",
        "created_at",
        "version__number",
        "version__state",
        "version__model__visibility",
        "version__model__slug",
        "version__model__organization__slug",
    )
    on_sale = (State.PUBLISHED, Model.Visibility.PUBLIC)
    return [
        Known(str(pk), f"{org}/{slug}@{number}" if (state, seen) == on_sale else None, bytes(values), made_at)
        for pk, values, made_at, number, state, seen, slug, org in rows
    ]


def inspect_words(model: Model) -> list[Finding]:
    """Return what the checks of the listing's words find: its names and its card."""
    own = Name(model.organization.slug, model.slug, model.title)
    others = (
        catalog.published_names()
        .exclude(organization=model.organization_id)
        .values_list("organization__slug", "slug", "title")
    )
    host = urlsplit(settings.PUBLIC_URL).hostname or ""
    return [
        *name_findings(own, (Name(*names) for names in others)),
        *card_findings(model.card_markdown, own_host=host),
    ]


def _scores(version: Version) -> tuple[Score | None, Score | None]:
    """Return the newest score of the version, and that of the last version before it that has one on the same set."""
    new = Evaluation.objects.filter(version=version).order_by("-pk").first()
    if new is None:
        return None, None
    before = Evaluation.objects.filter(
        version__model=version.model_id, version__number__lt=version.number, set_digest=new.set_digest
    )
    old = before.select_related("version").order_by("-version__number", "-pk").first()
    return _score(new, version.number), None if old is None else _score(old, old.version.number)


def _score(row: Evaluation, number: int) -> Score:
    return Score(number, row.set_number, row.rows, row.correct)


def _copy_price(version: Version, model: Model) -> tuple[int | None, int]:
    """Return what enough calls for a copy cost in nano-dollars, None where a call has no price yet, and the rate."""
    price = catalog.price_of(version=version)
    call = usual_call(model=model, version=version, message=example_message(model))
    if price is None or call is None:
        return None, 0
    return copy_price_of(price, call[0]), copy_price_of(price, USUAL_CALL)
