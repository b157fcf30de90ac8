"""Step 2, what is promised, and the terms of a plan: a TOML file of the operator's."""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from fractions import Fraction
from pathlib import Path

import msgspec

from capacity.errors import PlanRefused
from capacity.results import Source, Step
from capacity.workload import CLASSES, Promise

_LARGEST = 1 << 20


class Terms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The promises and terms of a plan.

    promises: by latency class; alpha: share of requests within both limits; failures: replicas that may die at once
    degraded: factor on both limits while a replica is lost; weeks: ahead
    growth: of demand in the time that a replica takes to be ready; ready_seconds: that time
    creator_share, fee_share: of the revenue; zone_may_fail: the degraded promise holds without any one zone
    memory_share: of an accelerator that a replica takes; workspace_gb: of a step; slots: adapters kept resident
    example: the figures are invented, and every page of the plan says so
    """

    promises: dict[str, Promise]
    alpha: float = 0.99
    failures: int = 1
    degraded: float = 2.0
    weeks: int = 4
    growth: float = 0.05
    ready_seconds: float = 120.0
    creator_share: str = "0.7"
    fee_share: str = "0.03"
    zone_may_fail: bool = False
    memory_share: float = 0.92
    workspace_gb: float = 2.0
    slots: int = 256
    example: bool = False

    @property
    def shares(self) -> tuple[Fraction, Fraction]:
        """Return what creators and the payment processor get of the revenue."""
        return Fraction(self.creator_share), Fraction(self.fee_share)


def read_terms(path: Path) -> Terms:
    """Read a TOML file of terms. Raises PlanRefused with the field that is wrong."""
    try:
        if path.stat().st_size > _LARGEST:
            raise PlanRefused(2, f"{path} is longer than 1 MiB")
        terms = msgspec.convert(tomllib.loads(path.read_text()), Terms)
    except OSError as error:
        raise PlanRefused(2, f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanRefused(2, f"{path}: {error}") from error
    _check(terms)
    return terms


def step(terms: Terms, asked: Collection[str]) -> Step:
    """Return step 2 as it is printed. asked: the classes that the usage has calls of"""
    inputs = {
        name: f"first token within {one.ttft:g} s, then {1e3 * one.tpot:g} ms per token"
        + ("" if name in asked else "; not asked, so not planned for")
        for name, one in sorted(terms.promises.items())
    }
    return Step(
        2,
        "Promise",
        inputs | {"replicas that may die": f"{terms.failures}"},
        "share of requests within both limits ≥ α",
        f"{100 * terms.alpha:g} % of requests within both limits; {terms.degraded:g} × both while a replica is lost",
        terms.alpha,
        "share",
        Source.CATALOGUE,
        worked=f"α = {terms.alpha:g}; k = {terms.failures}",
    )


def _check(terms: Terms) -> None:
    if not terms.promises:
        raise PlanRefused(2, f"no promise: name one for each class that is asked ({', '.join(CLASSES)})")
    for name, one in terms.promises.items():
        if name not in CLASSES or not (0 < one.ttft < 86_400 and 0 < one.tpot < 3_600):
            raise PlanRefused(2, f"the promise of {name}: a class of {', '.join(CLASSES)}, and seconds above 0")
    ranges = (
        ("alpha", 0.5, 0.9999),
        ("failures", 0, 100),
        ("degraded", 1.0, 100.0),
        ("weeks", 1, 13),
        ("growth", 0.0, 10.0),
        ("ready_seconds", 0.0, 86_400.0),
        ("memory_share", 0.05, 1.0),
        ("workspace_gb", 0.0, 1000.0),
        ("slots", 1, 1_000_000),
    )
    for name, least, most in ranges:
        value = getattr(terms, name)
        if not least <= value <= most:
            raise PlanRefused(2, f"{name} is {value}, and lies between {least:g} and {most:g}")
    for name in ("creator_share", "fee_share"):
        text = getattr(terms, name)
        try:
            share = Fraction(text)
        except (ValueError, ZeroDivisionError):
            raise PlanRefused(2, f'{name} is a share in quotes, such as "0.7"') from None
        if not 0 <= share <= 1:
            raise PlanRefused(2, f"{name} is {text}, and lies between 0 and 1")
