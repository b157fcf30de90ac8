"""A creator's policy about personal data in requests to a model."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction

from marketplace.accounts import audit
from marketplace.accounts.services import checked_guards
from marketplace.catalog.models import Model


@transaction.atomic
def set_model_guards(*, model: Model, guards: Mapping[str, str]) -> Model:
    """Mask or refuse personal data in requests to this model, every version. Gateways follow within a second.

    A customer's own policy adds to it; the stricter of the two holds. Raises InvalidInput.
    """
    model.guards = checked_guards(guards)
    model.save(update_fields=["guards", "updated_at"])
    audit.record(organization=model.organization, act="model.guards_changed", subject=model.slug)
    return model
