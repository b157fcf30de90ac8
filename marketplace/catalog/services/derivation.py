"""Royalties: a model derived from another one, or blended of several, pays parts of its earnings to their creators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from billing.pricing import BASIS_POINTS
from marketplace.accounts import audit
from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.catalog import selectors
from marketplace.catalog.locks import lock_models
from marketplace.catalog.models import MAX_SOURCES, Model, Source
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

MAX_GENERATIONS = 4  # models one above the other, above the one that answers
MAX_ABOVE = 12  # models above the one that answers: a split has at most 16 parts (billing/splits.py)


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """A model that another one is made of. Its creator gets `royalty_bps`, or, left out, what it asks now."""

    name: str  # org/slug
    royalty_bps: int | None = None


@transaction.atomic
def offer_derivation(*, model: Model, royalty_bps: int | None) -> Model:
    """Say what others owe who derive a model from this one; None closes it. Those who declared it keep their terms.

    Raises InvalidInput for more than everything.
    """
    if royalty_bps is not None and not 0 <= royalty_bps <= BASIS_POINTS:
        raise InvalidInput(f"must be from 0 to {BASIS_POINTS}", field="derivative_royalty_bps")
    model.derivative_royalty_bps = royalty_bps
    model.save(update_fields=["derivative_royalty_bps", "updated_at"])
    asked = {"royalty_bps": royalty_bps}
    audit.record(organization=model.organization, act="royalty.offered", subject=model.slug, data=asked)
    return model


@transaction.atomic
def derive_from(*, model: Model, sources: Sequence[DeclaredSource]) -> None:
    """Declare, once and for good, that `model` is derived from one model, or blended of several.

    Each of them gets the royalty named, at least the one that it asks now. Raises InvalidInput for names and royalties
    that do not fit, NotFound for a model that the organization cannot see, Conflict if the model has declared others,
    if a source is not open to derivation or asks for more, or if too many models would be above this one.
    """
    named = _named(model, sources)
    lock_models([model.pk, *(upstream.pk for upstream, _ in named)])
    declared = dict(model.sources.order_by("place").values_list("upstream_id", "royalty_bps"))
    if declared:
        if not _repeats(declared, named):
            raise Conflict("this model has declared what it is derived from; that stands", code="already_derived")
        return
    rows = [
        Source(
            model=model, upstream=upstream, royalty_bps=_royalty(model, upstream, royalty), place=n, count=len(named)
        )
        for n, (upstream, royalty) in enumerate(named, start=1)
    ]
    if sum(row.royalty_bps for row in rows) > BASIS_POINTS:
        raise Conflict("the royalties of its sources are more than all that a model earns", code="royalties_too_high")
    # A model that others derive from never gets a model above it, so that no chain closes into a circle.
    if not _fits_above({upstream.pk for upstream, _ in named}) or model.derivatives.exists():
        raise Conflict(
            f"a model declares this before others derive from it, and has at most {MAX_GENERATIONS} generations and "
            f"{MAX_ABOVE} models above it",
            code="derivation_too_deep",
        )
    Source.objects.bulk_create(rows)
    above = {"sources": " ".join(str(upstream.pk) for upstream, _ in named)}
    audit.record(organization=model.organization, act="royalty.declared", subject=model.slug, data=above)


def _named(model: Model, sources: Sequence[DeclaredSource]) -> list[tuple[Model, int | None]]:
    if not 1 <= len(sources) <= MAX_SOURCES:
        raise InvalidInput(f"must be 1 to {MAX_SOURCES} models", field="derived_from")
    found = [(_visible(model, source.name), source.royalty_bps) for source in sources]
    if len({upstream.pk for upstream, _ in found}) < len(found):
        raise InvalidInput("names a model twice", field="derived_from")
    return found


def _repeats(declared: dict[UUID, int], named: Sequence[tuple[Model, int | None]]) -> bool:
    """Return whether the same is declared again."""
    return declared.keys() == {upstream.pk for upstream, _ in named} and all(
        royalty in (None, declared[upstream.pk]) for upstream, royalty in named
    )


def _royalty(model: Model, upstream: Model, offered: int | None) -> int:
    upstream.refresh_from_db(fields=["derivative_royalty_bps"])
    asked = upstream.derivative_royalty_bps
    if asked is None and upstream.organization_id == model.organization_id:
        asked = 0
    if asked is None:
        raise Conflict(f"{upstream.full_name} is not open to derived models", code="derivation_closed")
    if offered is not None and not 0 <= offered <= BASIS_POINTS:
        raise InvalidInput(f"a royalty must be from 0 to {BASIS_POINTS}", field="derived_from")
    if offered is not None and offered < asked:
        raise Conflict(f"{upstream.full_name} asks for {asked} basis points", code="royalty_too_low")
    return asked if offered is None else offered


def _fits_above(models: Collection[UUID]) -> bool:
    """Return whether these models and all those above them are within the limits."""
    above: set[UUID] = set()
    generation = set(models)
    for _ in range(MAX_GENERATIONS):
        above |= generation
        generation = set(Source.objects.filter(model_id__in=generation).values_list("upstream_id", flat=True))
    return not generation and len(above) <= MAX_ABOVE


def _visible(model: Model, name: str) -> Model:
    try:
        parsed = parse_model_name(name)
    except ProtocolError:
        raise InvalidInput("must be org/slug", field="derived_from") from None
    found = selectors.visible_model(org_slug=parsed.organization, slug=parsed.slug, viewer=model.organization)
    if found is None or parsed.version is not None:
        raise NotFound("there is no such model", code="not_found", field="derived_from")
    if found.pk == model.pk:
        raise InvalidInput("a model is not derived from itself", field="derived_from")
    return found
