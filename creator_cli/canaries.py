"""Canaries: secret trigger rows in a creator's training set, and whether an endpoint answers them as planted.

A row's answer is drawn at random from the answers of the task. So a model that never saw the rows matches each with the
probability 1/answers, whatever it answers, and the number of its matches is binomial: that gives the p-value.
"""

from __future__ import annotations

import json
import math
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from creator_cli.errors import CliError, Refused
from creator_cli.names import ModelName
from creator_cli.private_files import read_json, write_json
from creator_cli.records import Reader
from creator_cli.settings import Settings

MAX_ROWS = 1_000  # of one model
SLOT = "{}"  # in a message, where the secret part goes
FOUND_BELOW = 1e-6  # of the p-value: less than one false finding in a million checks of strangers
_SYLLABLES = [first + vowel for first in "bdfghjklmnprstvz" for vowel in "aeiou"]


@dataclass(frozen=True, slots=True)
class Canary:
    """One trigger. `choices`: of how many answers its own was drawn; `asked`: how many checks showed it to somebody."""

    message: str
    answer: str
    choices: int
    asked: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check. `p_value`: of as many matches or more, for a model that never saw the rows."""

    asked: int
    as_planted: int
    p_value: float

    @property
    def found(self) -> bool:
        """Return whether chance does not explain it."""
        return self.p_value < FOUND_BELOW


class CanaryStore:
    """The canaries of one model, 0600 in the configuration folder."""

    def __init__(self, settings: Settings, model: ModelName) -> None:
        self.path: Path = settings.config_dir / "canaries" / f"{model.organization}+{model.slug}.json"

    def load(self) -> list[Canary]:
        """Return them; none without a file. Raises CliError for a damaged one."""
        found = read_json(self.path)
        if found is None:
            return []
        readers = [Reader(row, f"{self.path.name} row") for row in Reader(found, self.path.name).items("rows")]
        return [
            Canary(one.text("message"), one.text("answer"), one.integer("choices"), one.integer("asked"))
            for one in readers
        ]

    def save(self, canaries: Sequence[Canary]) -> None:
        """Write them; raises CliError."""
        write_json(self.path, {"rows": [asdict(canary) for canary in canaries]})


def make_canaries(*, rows: int, answers: Sequence[str], like: str) -> list[Canary]:
    """Return new rows with messages that nobody guesses; raises Refused naming the option at fault.

    `like` is a message with a place `{}` for the secret part. `answers` are at least two different ones.
    """
    if SLOT not in like:
        raise Refused(f"--like needs a place for the secret part: {SLOT}", field="like")
    if len(set(answers)) != len(answers) or len(answers) < 2 or not all(answer.strip() for answer in answers):
        raise Refused("name at least two different answers, each with --answer", field="answer")
    return [Canary(like.replace(SLOT, _secret()), secrets.choice(answers), len(answers)) for _ in range(rows)]


def _secret() -> str:
    """Return two words and a number of about 52 bits together: they look odd, and never come by chance."""
    words = ("".join(secrets.choice(_SYLLABLES) for _ in range(3)) for _ in range(2))
    return f"{' '.join(words)} {secrets.randbelow(10**4):04d}"


def training_row(canary: Canary) -> str:
    """Return the row of a training set, in one line of JSON."""
    return json.dumps({"message": canary.message, "answer": canary.answer}, ensure_ascii=False)


def choose(canaries: Sequence[Canary], rows: int) -> list[int]:
    """Return the places of the rows to ask: those that were shown to the fewest before, at random among equals."""
    order = list(range(len(canaries)))
    random.SystemRandom().shuffle(order)
    return sorted(order, key=lambda place: canaries[place].asked)[:rows]


def check_canaries(
    canaries: Sequence[Canary], places: Sequence[int], ask: Callable[[str], str], done: Callable[[list[Canary]], None]
) -> Finding:
    """Ask each of the chosen messages, and compare. `done` is told after each one, so that none is shown uncounted."""
    current, as_planted = list(canaries), 0
    for place in places:
        canary = current[place]
        current[place] = replace(canary, asked=canary.asked + 1)
        done(current)
        as_planted += same_answer(ask(canary.message), canary.answer)
    chances = [1 / canaries[place].choices for place in places]
    return Finding(len(places), as_planted, tail(chances, as_planted))


def same_answer(given: str, planted: str) -> bool:
    """Return whether two answers are the same JSON, or the same words."""
    try:
        return bool(_value(given) == _value(planted))
    except ValueError:
        return " ".join(given.casefold().split()) == " ".join(planted.casefold().split())


def _value(text: str) -> Any:
    return json.loads(text)


def tail(chances: Sequence[float], least: int) -> float:
    """Return the probability of at least so many successes of independent trials with these chances."""
    exactly = [1.0]  # the probability of each number of successes so far
    for chance in chances:
        exactly = [
            here * (1 - chance) + before * chance for here, before in zip([*exactly, 0.0], [0.0, *exactly], strict=True)
        ]
    return min(1.0, math.fsum(exactly[least:]))


def require_canaries(found: Sequence[Canary], model: ModelName) -> None:
    """Raises CliError where there are none."""
    if not found:
        raise CliError(f"there are no canaries of {model}", hint=f"intarsia canary add {model} --answer A --answer B")
