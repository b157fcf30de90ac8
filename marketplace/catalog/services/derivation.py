"""Royalties: a model that is derived from another one pays a part of its earnings to that one's creator."""

from __future__ import annotations

from django.db import transaction

from billing.pricing import BASIS_POINTS
from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.catalog import selectors
from marketplace.catalog.locks import lock_models
from marketplace.catalog.models import Model
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

MAX_GENERATIONS = 4  # models that one prediction pays, above the one that answers


def offer_derivation(*, model: Model, royalty_bps: int | None) -> Model:
    """Say what others owe who derive a model from this one; None closes it. Those who declared it keep their terms.

    Raises InvalidInput for more than everything.
    """
    if royalty_bps is not None and not 0 <= royalty_bps <= BASIS_POINTS:
        raise InvalidInput(f"must be from 0 to {BASIS_POINTS}", field="derivative_royalty_bps")
    model.derivative_royalty_bps = royalty_bps
    model.save(update_fields=["derivative_royalty_bps", "updated_at"])
    return model


@transaction.atomic
def derive_from(*, model: Model, upstream_name: str) -> Model:
    """Declare, once and for good, that `model` is derived from `org/slug`, at the royalty that one asks for now.

    Raises NotFound for a model that its organization cannot see, Conflict if the model has declared another, if the
    upstream is not open to derivation, or if the chain would grow too long.
    """
    upstream = _visible(model, upstream_name)
    lock_models([model.pk, upstream.pk])
    model.refresh_from_db(fields=["derived_from", "royalty_bps"])
    if model.derived_from_id == upstream.pk:
        return model
    if model.derived_from_id is not None:
        raise Conflict("this model has declared what it is derived from; that stands", code="already_derived")
    upstream.refresh_from_db(fields=["derived_from", "derivative_royalty_bps"])
    own = upstream.organization_id == model.organization_id
    royalty = 0 if own and upstream.derivative_royalty_bps is None else upstream.derivative_royalty_bps
    if royalty is None:
        raise Conflict(f"{upstream_name} is not open to derived models", code="derivation_closed")
    generations, above = 1, upstream
    while above.derived_from is not None:
        generations, above = generations + 1, above.derived_from
    # A model that others derive from never gets a model above it, so that no chain closes into a circle.
    if generations > MAX_GENERATIONS or model.derivatives.exists():
        raise Conflict(
            f"a model declares this before others derive from it, and has at most {MAX_GENERATIONS} models above it",
            code="derivation_too_deep",
        )
    model.derived_from, model.royalty_bps = upstream, royalty
    model.save(update_fields=["derived_from", "royalty_bps", "updated_at"])
    return model


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
