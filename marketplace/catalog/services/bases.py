"""Base models that replicas serve, and the platform's own listings of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils import timezone

from marketplace.accounts.errors import InvalidInput
from marketplace.accounts.models import Organization
from marketplace.catalog.models import BaseModel, Model, Version
from marketplace.catalog.services.listings import ListingText, create_model, update_model
from marketplace.catalog.services.prices import set_price
from sealed_weights import FormatError, base_fingerprint

_MAX_CONFIG_SIZE = 2**20


def register_base(*, name: str, fingerprint: str, config: dict[str, Any], context_length: int) -> BaseModel:
    """Register a base model by its fingerprint (64 hex digits); registering it again returns the first row."""
    base, _ = BaseModel.objects.get_or_create(
        fingerprint=fingerprint, defaults={"name": name, "config": config, "context_length": context_length}
    )
    return base


def register_base_directory(*, name: str, directory: Path) -> BaseModel:
    """Register the base model in a Hugging Face folder. Raises InvalidInput if the folder is none."""
    path = directory / "config.json"
    try:
        if path.stat().st_size > _MAX_CONFIG_SIZE:
            raise InvalidInput(f"{path}: larger than {_MAX_CONFIG_SIZE} bytes", field="base")
        config = json.loads(path.read_bytes())
        context_length = int(config["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path}: not a model configuration ({error})", field="base") from None
    try:
        fingerprint = base_fingerprint(directory)
    except FormatError as error:
        raise InvalidInput(f"{directory}: {error}", field="base") from None
    return register_base(name=name, fingerprint=fingerprint.hex(), config=config, context_length=context_length)


@transaction.atomic
def list_base_model(
    *,
    organization: Organization,
    slug: str,
    base_model: BaseModel,
    text: ListingText,
    price: Mapping[str, int],
) -> Model:
    """List the bare base model under the platform's organization, published as version 1; again, only updates its text.

    `price` are the amounts of `set_price`.

    It has no package, so a version's other states do not apply to it.
    """
    model = Model.objects.filter(organization=organization, slug=slug).first()
    if model is None:
        model = create_model(organization=organization, slug=slug, base_model=base_model, text=text)
        model.kind = Model.Kind.BASE
        model.save(update_fields=["kind"])
        set_price(model=model, **price)  # type: ignore[arg-type]  # amounts alone
    elif model.base_model_id != base_model.id:
        # Another BASE_MODEL than last time: the listing follows what the replicas serve now.
        model.base_model = base_model
        model.save(update_fields=["base_model"])
    update_model(model=model, text=text)
    now = timezone.now()
    Version.objects.get_or_create(
        model=model, number=1, defaults={"state": Version.State.PUBLISHED, "published_at": now, "package_digest": None}
    )
    return model
