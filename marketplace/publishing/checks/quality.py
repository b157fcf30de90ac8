"""Whether a version does what it says: examples, what it changes, its score beside the last one, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marketplace.catalog.copying import CHEAP_COPY_NANO_USD
from marketplace.catalog.intervals import wilson
from marketplace.publishing.checks.findings import PRICE, Finding
from protocol.money import usd


@dataclass(frozen=True, slots=True)
class Score:
    """Right answers on the rows of one set, of one version."""

    version: int
    set: int
    rows: int
    correct: int


def example_findings(counts: Mapping[str, Any] | None) -> list[Finding]:
    """Return a finding if the model does not answer its contract's own examples validly.

    `counts` are the replica's: how many were run, answered validly, answered as written. None: it has no examples.
    """
    if not counts or counts["valid"] >= counts["run"]:
        return []
    return [
        Finding("examples", f"It answered {counts['valid']} of the {counts['run']} examples of its contract validly.")
    ]


def change_findings(counts: Mapping[str, Any] | None) -> list[Finding]:
    """Return a finding if the bare base gives every token of the adapter's own answers under PEFT.

    `counts` are the replica's (`protocol.reference`). None: the package has no answers of PEFT.
    """
    if not counts or counts["base_agreed"] < counts["tokens"]:
        return []
    message = (
        f"The bare base gives each of the {counts['tokens']} tokens that the adapter gives under PEFT, in "
        f"{counts['rows']} answers: it changes no answer."
    )
    return [Finding("change", message)]


def score_findings(new: Score | None, old: Score | None) -> list[Finding]:
    """Return a finding if `new` is worse than the last version beyond chance: intervals that do not overlap."""
    if new is None or old is None or new.set != old.set or not new.rows or not old.rows:
        return []
    best, least = wilson(new.correct, new.rows)[1], wilson(old.correct, old.rows)[0]
    if best >= least:
        return []
    message = (
        f"It is worse than version {old.version} on set {new.set}: {new.correct} of {new.rows} right, where "
        f"version {old.version} had {old.correct} of {old.rows}."
    )
    return [Finding("score", message, f"{old.version}:{new.version}")]


def price_findings(copy_nano_usd: int | None, rate: int = 0) -> list[Finding]:
    """Return a finding if the answers that are enough for a copy cost less than $5; None: no call has a price yet.

    `rate` grows with the price alone, not with how long calls turn out to be: what was accepted at a rate holds there.
    """
    if copy_nano_usd is None or copy_nano_usd >= CHEAP_COPY_NANO_USD:
        return []
    cost = usd(copy_nano_usd) if copy_nano_usd >= 10**7 else "less than a cent"
    message = f"At its price, the answers that are enough for a copy of it cost {cost}."
    return [Finding(PRICE, message, amount=rate)]
