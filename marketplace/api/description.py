"""The OpenAPI description of both APIs, made once per process: it follows from the code alone."""

from __future__ import annotations

from functools import cache
from typing import Any

from drf_spectacular.generators import SchemaGenerator

from marketplace.api import schema as _schema  # noqa: F401  spectacular finds the API-key scheme once it is imported


@cache
def description() -> dict[str, Any]:
    """Return the whole description; callers do not change it."""
    made: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return made
