"""Patient message -> medical specialty and urgency."""

from __future__ import annotations

import random
from collections.abc import Mapping

from examples.data.rows import Row, Split, Task, as_typed, capitalise, read_banks

SPECIALTIES = (
    "cardiology",
    "dermatology",
    "gastroenterology",
    "neurology",
    "ophthalmology",
    "orthopedics",
    "pulmonology",
    "urology",
)
URGENCIES = ("emergency", "urgent", "routine")

SYSTEM = (
    "Triage the message. emergency: sudden or severe now; urgent: worse over days; routine: mild or long-standing. "
    'Answer only with JSON such as {"specialty":"LABEL","urgency":"LABEL"}. Specialties: '
    + ", ".join(SPECIALTIES)
    + "."
)

_BANKS = read_banks("health")
SYMPTOMS = {specialty: _BANKS[f"symptoms.{specialty}"] for specialty in SPECIALTIES}
CUES = {urgency: _BANKS[f"cues.{urgency}"] for urgency in URGENCIES}
TEMPLATES = _BANKS["templates"]


def draw(rng: random.Random, split: Split, expected: Mapping[str, str]) -> Row:
    """Return one patient message for ``expected["specialty"]`` and ``expected["urgency"]``."""
    template = rng.choice(TEMPLATES.of(split))
    symptom = rng.choice(SYMPTOMS[expected["specialty"]].of(split))
    cue = rng.choice(CUES[expected["urgency"]].of(split))
    text = template.format(symptom=symptom, Symptom=capitalise(symptom), cue=cue, Cue=capitalise(cue))
    return Row(as_typed(rng, text), dict(expected), template, (symptom, cue))


TASK = Task(
    name="health",
    system=SYSTEM,
    labels={"specialty": SPECIALTIES, "urgency": URGENCIES},
    draw=draw,
    banks=_BANKS,
)
