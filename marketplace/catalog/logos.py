"""Logos of models: pictures from strangers, made anew from their pixels before anybody sees them."""

from __future__ import annotations

import hashlib
from typing import ClassVar
from uuid import UUID

from django.db import models
from django.db.models.functions import Now

from marketplace.teams.pictures import redraw_whole

MAX_KEPT = 10  # logos of one model: of more, the oldest go


class Logo(models.Model):
    """One picture that was sent for a model, by the digest of its bytes; `Model.logo` says which is shown."""

    model = models.ForeignKey("catalog.Model", on_delete=models.CASCADE, related_name="logos", db_index=False)
    digest = models.CharField(max_length=64)
    image = models.BinaryField()  # PNG, drawn by `redraw_whole`
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["model", "digest"], name="logo_once")]


def keep_logo(*, model_id: UUID, file: bytes) -> str:
    """Store the picture for the model, not shown yet, and return its digest. Raises InvalidInput, TooLarge."""
    image = redraw_whole(file)
    digest = hashlib.sha256(image).hexdigest()
    Logo.objects.get_or_create(model_id=model_id, digest=digest, defaults={"image": image})
    old = Logo.objects.filter(model_id=model_id).exclude(digest=models.F("model__logo")).exclude(digest=digest)
    Logo.objects.filter(pk__in=list(old.order_by("-pk").values_list("pk", flat=True)[MAX_KEPT - 2 :])).delete()
    return digest


def logo_of(*, model_id: UUID, digest: str) -> bytes | None:
    """Return the PNG with this digest that was sent for the model, or None."""
    row = Logo.objects.filter(model_id=model_id, digest=digest).first()
    return None if row is None else bytes(row.image)
