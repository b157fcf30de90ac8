"""Personal data taken out of a request: `<EMAIL_1>` in the place of an address, the same for each time it is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marketplace.guards.policies import Policy
from marketplace.guards.texts import rewritten

Span = tuple[int, int, str]  # start, end, kind
# The names by which a caller says whom it asks for. A budget is kept under them, so they become names of their own.
END_USER_FIELDS = frozenset({"user", "safety_identifier"})

_PLACEHOLDER = re.compile(r"<([A-Z]+)_([0-9]+)>")
_CANDIDATE = re.compile(r"[@:\d]")  # every finding has one of these


class Refused(Exception):
    """A policy refuses what was found; `kind` says what."""

    def __init__(self, kind: str) -> None:
        """Take the kind."""
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True, repr=False)  # it holds what must be nowhere else
class Mask:
    """`values`: of each placeholder. `json_answer`: the answer is JSON, so a value is escaped in it."""

    values: Mapping[str, str] = field(default_factory=dict)
    json_answer: bool = False


@dataclass(frozen=True, repr=False)
class Masked:
    """A body without personal data. `kinds`: those that were masked in it."""

    body: dict[str, Any]
    mask: Mask
    kinds: frozenset[str]
    end_user: str | None  # the header's


def texts_of(body: dict[str, Any], *others: str) -> list[str]:
    """Return the texts in which something can be found, each once. Raises Unmaskable."""
    found: dict[str, None] = dict.fromkeys(others)

    def note(text: str) -> str:
        found[text] = None
        return text

    rewritten(body, note)
    return [text for text in found if _CANDIDATE.search(text)]


def mask_body(
    body: dict[str, Any],
    findings: Mapping[str, Iterable[Span]],
    policy: Policy,
    *,
    pseudonym: Callable[[str], str],
    end_user: str | None = None,
    json_answer: bool = False,
) -> Masked:
    """Return the body that goes out. `findings`: of every text of `texts_of`, in order and without overlaps.

    `pseudonym` names an end user whose own name holds personal data; `end_user` is one that came in a header. Raises
    Refused and Unmaskable.
    """
    for spans in findings.values():
        for _, _, kind in spans:
            if policy.action(kind) == "refuse":
                raise Refused(kind)
    names = _Placeholders(_taken(findings))

    def masked(text: str) -> str:
        pieces, at = [], 0
        for start, end, kind in findings.get(text, ()):
            pieces += [text[at:start], names.name(kind, text[start:end])]
            at = end
        return "".join(pieces) + text[at:] if at else text

    def whole(text: str) -> str:
        return pseudonym(text) if findings.get(text) else text

    users = {name: body[name] for name in END_USER_FIELDS & body.keys()}
    found = rewritten({name: value for name, value in body.items() if name not in users}, masked)
    found |= rewritten(users, whole)
    kinds = frozenset(kind for spans in findings.values() for _, _, kind in spans)
    values = {name: value for (_, value), name in names.given.items()}
    return Masked(found, Mask(values, json_answer), kinds, None if end_user is None else whole(end_user))


class _Placeholders:
    """Numbers each value of a kind; `given` holds them by kind and value."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.given: dict[tuple[str, str], str] = {}
        self._taken = taken
        self._last: dict[str, int] = {}

    def name(self, kind: str, value: str) -> str:
        if (kind, value) not in self.given:
            number = self._last.get(kind, 0) + 1
            while (name := f"<{kind.upper()}_{number}>") in self._taken:
                number += 1
            self._last[kind] = number
            self.given[kind, value] = name
        return self.given[kind, value]


def _taken(texts: Iterable[str]) -> frozenset[str]:
    """Return what looks like a placeholder in the caller's own texts: it stays what it is."""
    return frozenset(match.group() for text in texts for match in _PLACEHOLDER.finditer(text))
