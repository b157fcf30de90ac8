"""The filters of the catalogue on its page: parsed from the address, offered with counts, shown as chips to remove.

The parameters are those of `GET /api/v1/models`, so that an address of one is an address of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from marketplace.catalog.licences import name_of
from marketplace.catalog.search import Choices, Filters
from protocol.money import usd

_MOST = {"industry": 40, "base": 100, "tag": 30, "licence": 40}
_LARGEST = {
    "max_output_micro_usd_per_mtok": 2**62,
    "max_call_nano_usd": 2**62,
    "min_accuracy_bps": 10_000,
    "max_ttft_ms": 2**31 - 1,
}


def _output(micro: int) -> str:
    return f"up to {usd(micro, 6)} / 1M out"


def _call(nano: int) -> str:
    return f"up to {usd(nano)} a call"


def _accuracy(bps: int) -> str:
    return f"at least {bps / 100:g} % right"


def _latency(ms: int) -> str:
    return f"up to {ms / 1000:g} s" if ms >= 1000 else f"up to {ms} ms"


_LABELS: dict[str, tuple[str, Callable[..., str]]] = {
    "industry": ("Industry", lambda name: name[:1].upper() + name[1:]),
    "base": ("Base model", str),
    "max_output_micro_usd_per_mtok": ("Price of answers", _output),
    "max_call_nano_usd": ("Price of a call", _call),
    "min_accuracy_bps": ("Measured accuracy", _accuracy),
    "max_ttft_ms": ("First token", _latency),
    "licence": ("Licence", name_of),
    "tag": ("Tag", str),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a filter; `count` is None where nobody knows how many models it would leave."""

    value: str
    label: str
    count: int | None
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Field:
    """One filter with its choices."""

    name: str
    label: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is set; `address` is the query string without it."""

    label: str
    address: str


def parse_filters(query: QueryDict) -> Filters:
    """Return the filters of an address; what cannot be one limits nothing."""
    limits: dict[str, Any] = {name: query.get(name, "")[:most] for name, most in _MOST.items()}
    limits |= {name: _number(query.get(name, ""), most) for name, most in _LARGEST.items()}
    return Filters(**limits)


def fields_of(filters: Filters, choices: Choices, *, searched: bool) -> Iterator[Field]:
    """Yield each filter with its choices. `searched`: counts know of what was found alone, under all filters."""
    active = filters.active()
    for name, (label, say) in _LABELS.items():
        counted: Mapping[str, int] | Mapping[int, int] = choices.named.get(name) or choices.steps.get(name, {})
        counts = {str(value): count for value, count in counted.items()}
        chosen = str(active.get(name, ""))
        known = next((value for value in counts if value.lower() == chosen.lower()), None)
        if chosen and known is None:
            counts = {chosen: 0, **counts}
        hidden = searched and name in active
        yield Field(
            name,
            label,
            tuple(
                Choice(value, _say(name, say, value), None if hidden else count, value == (known or chosen))
                for value, count in counts.items()
                if count or hidden or value == (known or chosen)
            ),
        )


def chips_of(filters: Filters, query: QueryDict) -> Iterator[Chip]:
    """Yield a chip for each filter that is set."""
    for name, value in filters.active().items():
        rest = query.copy()
        for gone in (name, "page"):
            rest.pop(gone, None)
        label, say = _LABELS[name]
        yield Chip(f"{label}: {_say(name, say, str(value))}", rest.urlencode())


def _say(name: str, say: Callable[..., str], value: str) -> str:
    return say(int(value)) if name in _LARGEST else say(value)


def _number(text: str, most: int) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most else None
