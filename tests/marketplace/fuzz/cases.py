"""Requests that are made from the description, sent to every operation, and judged by every check of schemathesis.

`make fuzz EXAMPLES=200 SEED=7` sends more requests to each operation, and others. Without its variables the requests
are the same in every run: those at the edges of what the schemas allow, evenly chosen, and random ones of one seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import hypothesis
import schemathesis
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.generation.overrides import Override

EXAMPLES = int(os.environ.get("INTARSIA_FUZZ_EXAMPLES", "3"))  # random requests to each operation
EDGES = int(os.environ.get("INTARSIA_FUZZ_EDGES", EXAMPLES))  # and so many of the systematic ones at the edges
SEED = int(os.environ.get("INTARSIA_FUZZ_SEED", "32"))
ONLY = os.environ.get("INTARSIA_FUZZ_ONLY", "")  # operations whose name has this
Send = Callable[[Case], None]


def operations_of(description: Mapping[str, Any], prefix: str, app: object = None) -> list[APIOperation]:
    """Return the operations of the description whose path begins so, to be asked of `app`, or over the network."""
    paths = {path: methods for path, methods in description["paths"].items() if path.startswith(prefix)}
    # Rules between fields, and about what exists, are more than a schema says: a right request may be refused.
    refused = ["2xx", "3xx", "400", "401", "402", "403", "404", "409", "413", "422", "429", "503"]
    checks = {"positive_data_acceptance": {"expected-statuses": refused}}
    config = SchemathesisConfig.from_dict(
        # The callers bring their own credentials.
        {"seed": SEED, "checks": checks, "generation": {"with-security-parameters": False}}
    )
    schema = schemathesis.openapi.from_dict({**description, "paths": paths}, config=config)
    schema.app = app
    return [found.ok() for found in schema.get_all_operations()]


def problems_of(operations: Iterable[APIOperation], send: Send) -> Iterator[str]:
    """Send requests to the operations, and yield what is wrong with the answers: each kind of problem once."""
    for operation in operations:
        if ONLY in operation.label:
            seen: dict[str, str] = {}
            for case in _edges(operation):
                _judge(case, send, seen)
            _random(operation, lambda case, seen=seen: _judge(case, send, seen))
            yield from seen.values()


def _edges(operation: APIOperation) -> Iterator[Case]:
    """Yield requests at the edges of what the schema allows, evenly chosen where there are more than wanted."""
    made = list(
        CoverageGenerator(
            operation=operation,
            generation_modes=list(GenerationMode),
            generation_config=operation.schema.config.generation_for(operation=operation, phase="coverage"),
            auth_storage=None,
            override=Override(),
            feedback=NO_FEEDBACK,
        )
    )
    step = max(1, len(made) / EDGES)
    yield from (made[int(index * step)] for index in range(min(EDGES, len(made))))


def _random(operation: APIOperation, judge: Callable[[Case], None]) -> None:
    either = st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=either)
    def each(case: Case) -> None:
        judge(case)

    each()


def _judge(case: Case, send: Send, seen: dict[str, str]) -> None:
    try:
        send(case)
    except FailureGroup as failures:
        for failure in failures.exceptions:
            told = f"{case.operation.label}: {failure.title}: {failure.message}"
            seen.setdefault(f"{failure.title}{failure.message[:60]}", f"{told}\n  {case.as_curl_command()[:1500]}")


def put_known(case: Case, known: Mapping[str, Any]) -> None:
    """Put things that exist into a request: it gets past 'there is no such thing'."""
    wrong = {where for where, one in case.meta.components.items() if one.mode is GenerationMode.NEGATIVE}
    if ParameterLocation.PATH not in wrong:
        for name in set(case.path_parameters or {}) & set(known):
            case.path_parameters[name] = str(known[name])
    if ParameterLocation.BODY not in wrong and isinstance(case.body, dict):
        for name in set(case.body) & set(known):
            if isinstance(case.body[name], str):
                case.body[name] = str(known[name])
