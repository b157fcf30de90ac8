"""Weights that are another organization's, known by their sketches (`protocol.lineage`).

A sketch holds random projections of each weight update ΔW = scale · B · A, so it does not see how ΔW was factorised,
which rank its factors were padded to, or how often they were sealed: two adapters with the same ΔW have one sketch, and
independent ones have sketches at nearly right angles. `tests/together/test_sketch.py` holds both apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from marketplace.publishing.checks.findings import COPY, Finding
from protocol.lineage import GROUPS, NUMBERS

COPIED = 0.8  # cosine of one group: noise as large as three quarters of the update is still found
RELATED = 0.5  # cosine of all groups together: 8 standard deviations of what chance gives


@dataclass(frozen=True, slots=True)
class Known:
    """The sketch of a version, and when it was made. name: `org/slug@n` if it is for sale in public, else None."""

    version_id: str
    name: str | None
    sketch: bytes
    made_at: datetime


def lineage_findings(own: bytes | None, others: Sequence[Known], ours: Sequence[Known] = ()) -> list[Finding]:
    """Return a finding for the version that `own` copies, or else for the one it is nearest to, if it is near.

    `own` None: the version was verified before weights were compared. `others` are earlier ones of other organizations;
    one that is itself a copy of `ours`, the creator's own versions and declared sources, accuses nobody.
    """
    if own is None:
        message = "Its weights were verified before the platform compared weights: push the version again."
        return [Finding("sketch", message)]
    if not others:
        return []
    groups, whole = similarities(own, [other.sketch for other in others])
    for check, sentence, values, least in (
        (COPY, "Its weights are a copy of {}.", groups, COPIED),
        ("related", "Its weights are much like those of {}.", whole, RELATED),
    ):
        for index in np.argsort(-values):
            if values[index] < least:
                break
            if not _copies(others[index], ours):
                return [_finding(check, sentence, others[index])]
    return []


def _copies(other: Known, ours: Sequence[Known]) -> bool:
    """Return whether `other` is a copy of what was ours before it came."""
    before = [one.sketch for one in ours if one.made_at < other.made_at]
    return bool(before) and float(similarities(other.sketch, before)[0].max()) >= COPIED


def _finding(check: str, sentence: str, other: Known) -> Finding:
    name = other.name or "another organization’s model, which was here before"
    return Finding(check, sentence.format(name), other.version_id)


def similarities(own: bytes, others: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return for each other sketch the largest cosine of one group that both have, and the cosine of all of them."""
    mine = _unit(np.frombuffer(own, np.int8).reshape(1, GROUPS, NUMBERS))
    theirs = _unit(np.frombuffer(b"".join(others), np.int8).reshape(-1, GROUPS, NUMBERS))
    cosines = (mine * theirs).sum(axis=2)
    used = [np.any(one, axis=2) for one in (mine, theirs)]
    sizes = np.sqrt(used[0].sum(axis=1) * used[1].sum(axis=1))
    return cosines.max(axis=1), cosines.sum(axis=1) / np.maximum(sizes, 1)


def _unit(sketches: np.ndarray) -> np.ndarray:
    values = sketches.astype(np.float32)
    norms = np.linalg.norm(values, axis=2, keepdims=True)
    return np.divide(values, norms, out=np.zeros_like(values), where=norms > 0)
