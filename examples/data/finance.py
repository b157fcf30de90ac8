"""Bank transaction text -> spending category."""

from __future__ import annotations

import random
from collections.abc import Mapping

from examples.data.rows import Row, Split, Task, add_typo, read_banks

CATEGORIES = (
    "groceries",
    "dining",
    "transport",
    "travel",
    "utilities",
    "housing",
    "health",
    "entertainment",
    "shopping",
    "income",
)

SYSTEM = (
    'Classify the bank transaction. Answer only with JSON such as {"category":"LABEL"} where LABEL is one of: '
    + ", ".join(CATEGORIES)
    + "."
)

_BANKS = read_banks("finance")
KINDS = {category: _BANKS[f"kinds.{category}"] for category in CATEGORIES}
NAMES, CITIES = _BANKS["names"], _BANKS["cities"]
SPENDING, RECEIVING = _BANKS["spending"], _BANKS["receiving"]


def _amount(rng: random.Random) -> str:
    return f"{rng.choice(('', '', '$', '-'))}{rng.randint(3, 240)}.{rng.randint(0, 99):02d}"


def _date(rng: random.Random) -> str:
    day, month = rng.randint(1, 28), rng.randint(1, 12)
    return rng.choice((f"{day:02d}/{month:02d}", f"{month:02d}-{day:02d}"))


def draw(rng: random.Random, split: Split, expected: Mapping[str, str]) -> Row:
    """Return one transaction line for ``expected["category"]``."""
    category = expected["category"]
    template = rng.choice((RECEIVING if category == "income" else SPENDING).of(split))
    kind, name, city = (rng.choice(source.of(split)) for source in (KINDS[category], NAMES, CITIES))
    shown = kind if rng.random() < 0.6 else kind.title()
    text = template.format(
        name=name, kind=shown, city=city, amount=_amount(rng), date=_date(rng), num=rng.randint(100, 9999)
    )
    style = rng.random()
    if style < 0.3:
        text = text.upper()
    elif style < 0.4:
        text = text.lower()
    if rng.random() < 0.08:
        text = add_typo(rng, text)
    used = [phrase for slot, phrase in (("{kind}", kind), ("{name}", name), ("{city}", city)) if slot in template]
    return Row(text, dict(expected), template, tuple(used))


TASK = Task(
    name="finance",
    system=SYSTEM,
    labels={"category": CATEGORIES},
    draw=draw,
    banks=_BANKS,
)
