"""Names that would be taken for another organization's: folded to plain letters, then compared by trigrams.

The similarity is pg_trgm's (a test compares the two), computed here because names are folded first, and because a
publication is rare: 10,000 names take a tenth of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from marketplace.accounts.names import fold
from marketplace.publishing.checks.findings import Finding

TOO_NEAR = 0.8  # of trigrams in common

_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Name:
    """The names under which a model is seen: its organization's slug, its own, and its title."""

    organization: str
    slug: str
    title: str

    @property
    def full(self) -> str:
        """Return `org/slug`."""
        return f"{self.organization}/{self.slug}"


def name_findings(own: Name, others: Iterable[Name]) -> list[Finding]:
    """Return a finding for the nearest name of another organization, for each of title, slug and organization.

    Order decides nothing: `others` are the models of other organizations that are for sale in public.
    """
    nearest: dict[str, tuple[float, Name, str]] = {}
    for other in others:
        for what, mine, theirs in _pairs(own, other):
            found = similarity(mine, theirs)
            if found >= TOO_NEAR and found > nearest.get(what, (0.0,))[0]:
                nearest[what] = (found, other, theirs)
    return [
        Finding("name", f"Its {what} is nearly that of another organization: “{theirs}” of {other.full}.", other.full)
        for what, (_, other, theirs) in nearest.items()
    ]


def _pairs(own: Name, other: Name) -> tuple[tuple[str, str, str], ...]:
    return (
        ("title", own.title, other.title),
        ("name", own.slug, other.slug),
        ("organization’s name", own.organization, other.organization),
    )


def similarity(one: str, other: str) -> float:
    """Return from 0 to 1 how many trigrams two texts share, once both are folded."""
    first, second = trigrams(fold(one)), trigrams(fold(other))
    if not first or not second:
        return 0.0
    # Most pairs differ too much in size alone: the shared part is at most the smaller set.
    if min(len(first), len(second)) < TOO_NEAR * max(len(first), len(second)):
        return 0.0
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


@lru_cache(maxsize=65_536)
def trigrams(text: str) -> frozenset[str]:
    """Return pg_trgm's trigrams of a text in small letters: of each word, with two blanks before and one after it."""
    found: set[str] = set()
    for word in _WORD.findall(text):
        padded = f"  {word} "
        found.update(padded[start : start + 3] for start in range(len(padded) - 2))
    return frozenset(found)
