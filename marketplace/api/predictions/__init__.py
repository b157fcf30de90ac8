"""`/v1` in the OpenAPI description: the gateway serves it, so nothing is derived from views.

The bodies of requests are the structs that parse them (`protocol.requests`); everything else stands in `operations.py`,
`later.py` and `answers.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from marketplace.api.predictions.answers import ANSWERS
from marketplace.api.predictions.fields import explained
from marketplace.api.predictions.later import OPERATIONS as LATER
from marketplace.api.predictions.operations import PREDICTIONS, Operation, described
from marketplace.api.predictions.shapes import SCHEMAS
from protocol.requests.bodies import describe_bodies

OPERATIONS = (*PREDICTIONS, *LATER)


@cache
def prediction_components() -> dict[str, Any]:
    """Return the schemas of requests and answers below `/v1`, by name."""
    return {**explained(describe_bodies()), **ANSWERS, **SCHEMAS}


@cache
def prediction_paths() -> dict[str, dict[str, Any]]:
    """Return the operations below `/v1`, by path and method."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = described(operation)
    return paths


__all__ = ["OPERATIONS", "Operation", "prediction_components", "prediction_paths"]
