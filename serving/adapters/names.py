"""Model names of plain folders: one adapter (`finance`), or a weighted blend of some (`finance:0.7+legal:0.3`)."""

from __future__ import annotations

import re

from serving.core import MAX_BLEND_PARTS

ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_WEIGHT = re.compile(r"-?[0-9]{1,4}(\.[0-9]{1,9})?", re.ASCII)
MAX_NAME = MAX_BLEND_PARTS * 160


def parse_model_name(name: str) -> tuple[tuple[str, float], ...]:
    """Split `name` into (adapter name, weight) parts: `NAME` or `NAME:WEIGHT`, joined by `+`; the default weight is 1.

    An adapter's name can contain neither sign, so a folder is never mistaken for a blend. Raises ValueError naming the
    part that is wrong.
    """
    if len(name) > MAX_NAME:
        raise ValueError(f"a model name has at most {MAX_NAME} characters")
    parts = []
    for part in name.split("+"):
        adapter, colon, weight = part.partition(":")
        if not ADAPTER_NAME.fullmatch(adapter):
            raise ValueError(f"{adapter!r} is not an adapter's name")
        if colon and not _WEIGHT.fullmatch(weight):
            raise ValueError(f"{weight!r} is not a weight: write NAME:0.7")
        parts.append((adapter, float(weight) if colon else 1.0))
    return tuple(parts)
