"""Scoring of answers: exact match of the first JSON object in the text. Standard library alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent


def first_json_object(text: str) -> dict[str, Any] | None:
    """Return the first JSON object in ``text``, or None when there is none."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            start = text.find("{", start + 1)
        else:
            return value
    return None


def is_right(text: str, expected: Mapping[str, str]) -> bool:
    """Return whether the first JSON object in ``text`` equals ``expected``: same keys, same values, nothing more."""
    return first_json_object(text) == dict(expected)


def accuracy(answers: Iterable[str], expected: Iterable[Mapping[str, str]]) -> float:
    """Return the share of right answers, 0 to 1. Raises ValueError when the lengths differ or there are none."""
    marks = [is_right(text, labels) for text, labels in zip(answers, expected, strict=True)]
    if not marks:
        raise ValueError("no answers to score")
    return sum(marks) / len(marks)


def read_heldout(name: str) -> list[dict[str, Any]]:
    """Return the committed held-out rows of task ``name``: ``{"messages": [...], "expected": {...}}`` each."""
    path = ROOT / name / "heldout.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
