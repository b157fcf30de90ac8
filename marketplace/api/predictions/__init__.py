"""`/v1` in the OpenAPI description: the gateway serves it, so nothing is derived from views.

The bodies of requests are the replica's own structs (`protocol/openai_bodies.json`); everything else stands in
`operations.py`, `later.py` and `answers.py`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import protocol
from marketplace.api.predictions.answers import ANSWERS
from marketplace.api.predictions.fields import explained
from marketplace.api.predictions.later import OPERATIONS as LATER
from marketplace.api.predictions.operations import PREDICTIONS, Operation, described
from marketplace.api.predictions.shapes import SCHEMAS

OPERATIONS = (*PREDICTIONS, *LATER)
_BODIES = Path(protocol.__file__).parent / "openai_bodies.json"


@cache
def prediction_components() -> dict[str, Any]:
    """Return the schemas of requests and answers below `/v1`, by name."""
    return {**explained(json.loads(_BODIES.read_text())), **ANSWERS, **SCHEMAS}


@cache
def prediction_paths() -> dict[str, dict[str, Any]]:
    """Return the operations below `/v1`, by path and method."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = described(operation)
    return paths


__all__ = ["OPERATIONS", "Operation", "prediction_components", "prediction_paths"]
