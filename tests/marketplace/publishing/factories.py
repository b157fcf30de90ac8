"""Organizations that people have approved a model of, and sketches of weights."""

from __future__ import annotations

import random
import secrets

from django.utils import timezone

from marketplace.catalog.models import Model, Version
from marketplace.publishing.models import Review, Sketch
from protocol.lineage import SKETCH_BYTES, write_sketch


def give_record(model: Model) -> Review:
    """Give the model's organization a record: a person has approved this model."""
    now = timezone.now()
    return Review.objects.create(
        model=model,
        kind=Review.Kind.LISTING,
        state=Review.State.APPROVED,
        reasons=[Review.Reason.NO_RECORD],
        opened_at=now,
        due_at=now,
        decided_at=now,
    )


def give_sketch(version: Version, values: bytes | None = None) -> Sketch:
    """Give the version the sketch of weights that are nobody else's, instead of the one it has."""
    Sketch.objects.filter(version=version).delete()
    return Sketch.objects.create(version=version, values=values or draw_sketch())


def draw_sketch(seed: int | None = None) -> bytes:
    """Return a sketch at nearly right angles to every other; with a seed, the same each time."""
    return secrets.token_bytes(SKETCH_BYTES) if seed is None else random.Random(seed).randbytes(SKETCH_BYTES)


def sketch_report() -> dict[str, str]:
    """Return the part of a verification's report that carries a sketch."""
    return {"sketch": write_sketch(draw_sketch())}
