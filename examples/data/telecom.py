"""Telecom support ticket -> queue and priority."""

from __future__ import annotations

import random
from collections.abc import Mapping

from examples.data.rows import Row, Split, Task, as_typed, capitalise, read_banks

QUEUES = ("billing", "network", "device", "roaming", "porting", "cancellation")
PRIORITIES = ("high", "normal", "low")

SYSTEM = (
    "Route the telecom support ticket. high: blocked or an emergency now; normal: needs a fix in days; low: only a "
    'question, no hurry. Answer only with JSON such as {"queue":"LABEL","priority":"LABEL"}. Queues: '
    + ", ".join(QUEUES)
    + "."
)

_BANKS = read_banks("telecom")
ISSUES = {queue: _BANKS[f"issues.{queue}"] for queue in QUEUES}
CUES = {priority: _BANKS[f"cues.{priority}"] for priority in PRIORITIES}
TEMPLATES = _BANKS["templates"]


def draw(rng: random.Random, split: Split, expected: Mapping[str, str]) -> Row:
    """Return one support ticket for ``expected["queue"]`` and ``expected["priority"]``."""
    template = rng.choice(TEMPLATES.of(split))
    issue = rng.choice(ISSUES[expected["queue"]].of(split))
    cue = rng.choice(CUES[expected["priority"]].of(split))
    text = template.format(issue=issue, Issue=capitalise(issue), cue=cue, Cue=capitalise(cue))
    return Row(as_typed(rng, text), dict(expected), template, (issue, cue))


TASK = Task(
    name="telecom",
    system=SYSTEM,
    labels={"queue": QUEUES, "priority": PRIORITIES},
    draw=draw,
    banks=_BANKS,
)
