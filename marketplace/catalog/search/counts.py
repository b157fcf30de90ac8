"""The choices of each filter with the number of models that it would leave, in one statement.

A choice is counted under all other filters and not under its own: so the numbers beside the choices of a filter say
what choosing another one would give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from marketplace.catalog.search.filters import CONDITIONS, Filters

MOST_NAMED = 40  # choices of a filter that has names, those of most models
# The steps of each filter that has numbers, from the one that leaves least.
STEPS: Mapping[str, tuple[int, ...]] = {
    "max_output_micro_usd_per_mtok": (100_000, 250_000, 500_000, 1_000_000, 2_000_000, 5_000_000),
    "max_call_nano_usd": (20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000),
    "min_accuracy_bps": (9_500, 9_000, 8_000, 7_000, 5_000),
    "max_ttft_ms": (250, 500, 1_000, 2_000, 5_000),
}
_COLUMNS = {
    "max_output_micro_usd_per_mtok": "output_micro_usd_per_mtok <=",
    "max_call_nano_usd": "call_nano_usd <=",
    "min_accuracy_bps": "accuracy_bps >=",
    "max_ttft_ms": "ttft_p95_ms <=",
}
_NAMED = {
    "industry": "SELECT min(industry) AS name, count(*) AS found FROM listed WHERE industry <> ''{others} "
    "GROUP BY upper(industry)",
    "base": "SELECT base AS name, count(*) AS found FROM listed WHERE true{others} GROUP BY base",
    "licence": "SELECT licence AS name, count(*) AS found FROM listed WHERE licence <> ''{others} GROUP BY licence",
    "tag": "SELECT tag AS name, count(*) AS found FROM listed, unnest(tags) AS tag WHERE true{others} GROUP BY tag",
}


@dataclass(frozen=True, slots=True)
class Choices:
    """The models that each choice would leave, by filter: names with the most models first, steps in their order."""

    named: Mapping[str, dict[str, int]]
    steps: Mapping[str, dict[int, int]]


def count_choices(filters: Filters, *, within: Collection[UUID] | None = None) -> Choices:
    """Count the listed models, or those `within` what a search has found."""
    wanted = filters.active()
    with connection.cursor() as cursor:
        cursor.execute(_statement(tuple(wanted), found=within is not None), {**wanted, "within": list(within or ())})
        rows: list[tuple[str, list[str] | None, list[int]]] = cursor.fetchall()
    named = {name: dict(zip(names, counts, strict=True)) for name, names, counts in rows if names is not None}
    steps = {name: dict(zip(STEPS[name], counts, strict=True)) for name, _, counts in rows if name in STEPS}
    return Choices({name: named.get(name, {}) for name in _NAMED}, steps)


def _statement(active: Collection[str], *, found: bool) -> str:
    passes = "".join(f", ({CONDITIONS[name]}) IS TRUE AS passes_{name}" for name in active)
    parts = []
    for name in (*_NAMED, *STEPS):
        others = "".join(f" AND passes_{other}" for other in active if other != name)
        if name in _NAMED:
            best = f"{_NAMED[name].format(others=others)} ORDER BY found DESC, name LIMIT {MOST_NAMED}"
            names, counts = (f"array_agg({column} ORDER BY found DESC, name)" for column in ("name::text", "found"))
            parts.append(f"SELECT '{name}', {names}, {counts} FROM ({best}) best HAVING count(*) > 0")
        else:
            steps = ", ".join(f"count(*) FILTER (WHERE {_COLUMNS[name]} {step})" for step in STEPS[name])
            parts.append(f"SELECT '{name}', NULL::text[], ARRAY[{steps}] FROM listed WHERE true{others}")
    return f"""
WITH listed AS MATERIALIZED (
    SELECT m.industry, b.name AS base, m.licence, m.tags, t.output_micro_usd_per_mtok, t.call_nano_usd, t.accuracy_bps,
        t.ttft_p95_ms{passes}
    FROM catalog_standing t JOIN catalog_model m ON m.id = t.model_id JOIN catalog_basemodel b ON b.id = m.base_model_id
    {"WHERE t.model_id = ANY (%(within)s::uuid[])" if found else ""})
{" UNION ALL ".join(f"({part})" for part in parts)}
"""
