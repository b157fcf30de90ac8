"""docs/ranking.md: its example runs as it stands, and its figures are those of the formula."""

from __future__ import annotations

import re
from pathlib import Path

from marketplace.standing import formula
from marketplace.standing.shelf import ESTABLISHED_PAYERS, NEW_FOR, SHELF_SIZE
from marketplace.web.model_cards import SHELF
from tests.marketplace.standing.attacks import ATTACKS

PAGE = (Path(__file__).parents[3] / "docs" / "ranking.md").read_text()


def test_the_example_runs() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/ranking.md", "exec"), {})


def test_the_figures_are_those_of_the_formula() -> None:
    text = " ".join(PAGE.split())
    for figure in (
        f"| {formula.QUALITY_POINTS:.0f} | quality |",
        f"| {formula.UPTIME_POINTS:.0f} | uptime |",
        f"| {formula.DEMAND_POINTS:.0f} | demand |",
        f"D / (D + {formula.HALF_DEMAND:.0f})",
        f"n / (n + {formula.TRUST_AT})",
        f"(answered + {formula.PRIOR_SERVED}) / (answered + lost + {formula.PRIOR_CALLS})",
        f"of {formula.MIN_ROWS} rows or more",
        f"answered in {formula.UPTIME_DAYS} days",
        f"known for {formula.CARD_RIPENS.days} days",
        f"half of its weight in {formula.HALF_LIFE_WEEKS:.0f} weeks",
        f"all of it after {formula.MEMORY_WEEKS}",
        f"at most {SHELF} on the landing page",
        f"new for {NEW_FOR.days} days",
        f"fewer than {ESTABLISHED_PAYERS} payers",
        f"{SHELF_SIZE} models are drawn",
    ):
        assert figure in text, figure


def test_each_attack_of_the_simulation_has_a_row() -> None:
    rows = re.findall(r"(?m)^\| [^|]+ \| \**(\d+|none)\** \| \d+ \|$", PAGE)
    assert len(rows) == len(ATTACKS)
