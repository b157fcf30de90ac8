"""Logos of models: pictures from strangers, made anew from their pixels before anybody sees them."""

from __future__ import annotations

import hashlib
from io import BytesIO
from typing import ClassVar
from uuid import UUID

from django.db import models
from django.db.models.functions import Now

from marketplace.accounts.errors import InvalidInput
from marketplace.catalog.errors import TooLarge

MAX_LOGO_BYTES = 256 * 1024  # of the file that is sent
MAX_SIDE = 2_048  # pixels of the file that is sent: 16 MiB once it is unpacked
LOGO_SIDE = 256  # pixels of what is kept
MAX_KEPT = 10  # logos of one model: of more, the oldest go
FORMATS = ("PNG", "JPEG", "WEBP")


class Logo(models.Model):
    """One picture that was sent for a model, by the digest of its bytes; `Model.logo` says which is shown."""

    model = models.ForeignKey("catalog.Model", on_delete=models.CASCADE, related_name="logos", db_index=False)
    digest = models.CharField(max_length=64)
    image = models.BinaryField()  # PNG, at most LOGO_SIDE pixels a side
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["model", "digest"], name="logo_once")]


def redrawn(file: bytes) -> bytes:
    """Return the picture of a PNG, JPEG or WebP file as a new PNG without anything else that the file held.

    Raises InvalidInput for another file, TooLarge for one over 256 KiB; what it says of its size is read before its
    pixels are.
    """
    from PIL import Image, UnidentifiedImageError  # at the first picture: the web process starts without it

    if len(file) > MAX_LOGO_BYTES:
        raise TooLarge(f"a logo has at most {MAX_LOGO_BYTES // 1024} KiB", field="logo")
    try:
        with Image.open(BytesIO(file), formats=FORMATS) as picture:
            if max(picture.size) > MAX_SIDE:
                raise InvalidInput(f"a logo has at most {MAX_SIDE:,} pixels a side", field="logo")
            picture.draft("RGB", (LOGO_SIDE, LOGO_SIDE))
            pixels = picture.convert("RGBA")
    except InvalidInput:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError, EOFError):
        raise InvalidInput(
            "is no PNG, JPEG or WebP picture that can be read", code="not_a_picture", field="logo"
        ) from None
    pixels.thumbnail((LOGO_SIDE, LOGO_SIDE))
    bare = Image.frombytes("RGBA", pixels.size, pixels.tobytes())  # pixels alone: no profile, comment or position
    out = BytesIO()
    bare.save(out, "PNG", optimize=True)
    return out.getvalue()


def keep_logo(*, model_id: UUID, file: bytes) -> str:
    """Store the picture for the model, not shown yet, and return its digest. Raises InvalidInput, TooLarge."""
    image = redrawn(file)
    digest = hashlib.sha256(image).hexdigest()
    Logo.objects.get_or_create(model_id=model_id, digest=digest, defaults={"image": image})
    old = Logo.objects.filter(model_id=model_id).exclude(digest=models.F("model__logo")).exclude(digest=digest)
    Logo.objects.filter(pk__in=list(old.order_by("-pk").values_list("pk", flat=True)[MAX_KEPT - 2 :])).delete()
    return digest


def logo_of(*, model_id: UUID, digest: str) -> bytes | None:
    """Return the PNG with this digest that was sent for the model, or None."""
    row = Logo.objects.filter(model_id=model_id, digest=digest).first()
    return None if row is None else bytes(row.image)
