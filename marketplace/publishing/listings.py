"""New listings, and logos: what a creator begins with."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from marketplace.accounts.audit import Actor, record
from marketplace.accounts.models import Organization
from marketplace.catalog import services as catalog_services
from marketplace.catalog.locks import lock_model
from marketplace.catalog.logos import keep_logo
from marketplace.catalog.models import BaseModel, Model
from marketplace.catalog.services.listings import ListingText
from marketplace.protection.services import protect_new_model
from marketplace.publishing.gate import change_listing
from marketplace.publishing.models import Review


@transaction.atomic
def create_listing(
    *, organization: Organization, slug: str, base_model: BaseModel, text: ListingText, actor: Actor
) -> Model:
    """Create a listing without a version, with the rules against copying that every model starts with.

    Raises what `create_model` raises.
    """
    model = catalog_services.create_model(organization=organization, slug=slug, base_model=base_model, text=text)
    protect_new_model(model)
    record(organization=organization, actor=actor, act="listing.created", subject=model.full_name)
    return model


@transaction.atomic
def set_logo(*, model: Model, file: bytes | None, by: UUID | None, actor: Actor) -> Review | None:
    """Show the picture of a PNG, JPEG or WebP file with the model; None takes the logo away.

    It passes the gate as other words of a listing do; returned is the review in which it waits, if it does. Raises
    InvalidInput, TooLarge, RefusedByReview.
    """
    if file is not None:
        lock_model(model.pk)  # logos that are kept are counted one at a time
    digest = "" if file is None else keep_logo(model_id=model.pk, file=file)
    return change_listing(model=model, text=ListingText(logo=digest), by=by, actor=actor)
