"""Filters of the catalogue: the same conditions for the search, for the list and for the counts beside each choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Filters:
    """Limits that all hold at once; an empty string and None limit nothing.

    max_call_nano_usd: of a call of 500 tokens in and 100 out, in the class standard
    min_accuracy_bps: of the platform's own figure, of at least 50 rows
    max_ttft_ms: of the 95th percentile of four weeks
    """

    industry: str = ""
    base: str = ""  # name or fingerprint
    tag: str = ""
    licence: str = ""
    max_output_micro_usd_per_mtok: int | None = None
    max_call_nano_usd: int | None = None
    min_accuracy_bps: int | None = None
    max_ttft_ms: int | None = None

    def active(self) -> dict[str, Any]:
        """Return those that limit something, by name; text without the zero bytes that no database takes."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        clean = {name: value.replace("\x00", "") if isinstance(value, str) else value for name, value in named.items()}
        return {name: value for name, value in clean.items() if value not in ("", None)}


NO_FILTERS = Filters()
# Conditions on `m` (catalog_model), `b` (catalog_basemodel) and `t` (catalog_standing). A listed model has one of each.
CONDITIONS = {
    "industry": "upper(m.industry) = upper(%(industry)s)",
    "base": "(b.name = %(base)s OR b.fingerprint = %(base)s)",
    "tag": "m.tags @> ARRAY[lower(%(tag)s)]::varchar[]",
    "licence": "m.licence = %(licence)s",
    "max_output_micro_usd_per_mtok": "t.output_micro_usd_per_mtok <= %(max_output_micro_usd_per_mtok)s",
    "max_call_nano_usd": "t.call_nano_usd <= %(max_call_nano_usd)s",
    "min_accuracy_bps": "t.accuracy_bps >= %(min_accuracy_bps)s",
    "max_ttft_ms": "t.ttft_p95_ms <= %(max_ttft_ms)s",
}
_JOINS = {
    "b.": " JOIN catalog_basemodel b ON b.id = m.base_model_id",
    "t.": " JOIN catalog_standing t ON t.model_id = m.id",
}


def exists_sql(names: Iterable[str]) -> str:
    """Return the condition that the model of `s.model_id` passes these filters, as an addition to a WHERE clause."""
    conditions = [CONDITIONS[name] for name in names]
    if not conditions:
        return ""
    joins = "".join(join for alias, join in _JOINS.items() if any(alias in one for one in conditions))
    wanted = "".join(f" AND {one}" for one in conditions)
    return f" AND EXISTS (SELECT FROM catalog_model m{joins} WHERE m.id = s.model_id{wanted})"
