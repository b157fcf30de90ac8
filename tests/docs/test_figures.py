"""Measured figures of the docs stand in their source: a kept result, the benchmark's own code, or docs/figures.md.

A paragraph is about measurements, together with the table that follows it, if it names a machine, calls a benchmark, or
links to figures. It must then say where its figures are from, and each number in it must be there, rounded at most.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from devstack.state import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
FROZEN = REPOSITORY / "docs" / "figures.md"
# docs/gpu.md states predictions, which tests/benchmarks/gpu holds; docs/capacity.md's example has a test of its own.
PAGES = sorted(
    {REPOSITORY / "README.md", REPOSITORY / "lora_kernels/README.md", *(REPOSITORY / "docs").glob("*.md")}
    - {FROZEN, REPOSITORY / "docs/gpu.md"}
)
ABOUT_MEASUREMENTS = re.compile(
    r"\bZen \d|\bEPYC\b|\bAMX\b|on (?:two|2) cores|python -m benchmarks\.|figures\.md#|RESULTS\.md|NOTES\.md"
)
NUMBER = re.compile(r"(?<![\w.,/-])(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?![\w/]|-\w)")
# Where a benchmark's results are not named for it.
SUITES = {"serving.residency": "residency", "fleet.autoscaling": "autoscaling"}


def blocks(page: str) -> list[str]:
    """Return the paragraphs of a page outside of code, each with the table behind it."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", re.sub(r"(?ms)^```.*?^```", "", page)):
        if block.lstrip().startswith("|") and found:
            found[-1] += "\n" + block
        else:
            found.append(block)
    return found


def numbers(text: str) -> set[str]:
    """Return the numbers of a text without those in code, links and names of machines, as they are written."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|\bZen \d|[A-Za-z]+-?\d[\w.-]*", " ", text)
    return {found[0] for found in NUMBER.finditer(text) if found[0]}


def sources(block: str) -> str:
    """Return the text of all that a block names as the source of its figures."""
    found = [section(FROZEN, anchor) for anchor in re.findall(r"figures\.md#([\w-]+)", block)]
    found += [section(BENCHMARKS / "NOTES.md", anchor) for anchor in re.findall(r"NOTES\.md#([\w-]+)", block)]
    for name in re.findall(r"python\s+-m\s+benchmarks\.([\w.]*\w)", block):
        module = BENCHMARKS / f"{name.replace('.', '/')}.py"
        assert module.is_file() or (module.with_suffix("") / "__main__.py").is_file(), f"there is no benchmarks.{name}"
        room = BENCHMARKS / name.partition(".")[0]
        found += [file.read_text() for file in (room.glob("*.py") if room.is_dir() else [module])]
        found += map(shown, BENCHMARKS.glob(f"results/*/{SUITES.get(name, name.partition('.')[0])}*.json"))
    if "RESULTS.md" in block:
        found += map(shown, BENCHMARKS.glob("results/*/*.json"))
    return "\n".join(found)


def shown(file: Path) -> str:
    """Return what a reader is shown of a result."""
    return json.dumps(json.loads(file.read_text())["parts"], ensure_ascii=False)


def section(page: Path, anchor: str) -> str:
    """Return the text below a heading."""
    for part in re.split(r"(?m)^## ", page.read_text())[1:]:
        heading = part.splitlines()[0]
        if re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == anchor:
            return part
    raise AssertionError(f"{page.name} has no section {anchor}")


def missing(block: str) -> list[str]:
    """Return the numbers of a block that none of its sources has."""
    found = re.findall(
        r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:e[+-]\d+)?", re.sub(r"(?<=\d)_(?=\d)", "", sources(block))
    )
    there = {float(text.replace(",", "")) for text in found}

    def is_there(text: str) -> bool:
        value, digits = float(text.replace(",", "")), len(text.partition(".")[2])
        return any(value in (round(one, digits), round(100 * one, digits)) for one in there)

    return sorted(text for text in numbers(block) if not is_there(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_measured_figure_of_a_page_stands_in_its_source(page: Path) -> None:
    found = {}
    for block in blocks(page.read_text()):
        if ABOUT_MEASUREMENTS.search(block) and (unknown := missing(block)):
            found[" ".join(block.split())[:90]] = unknown
    assert not found


def test_a_figure_that_nobody_measured_and_a_source_that_is_not_there_are_found() -> None:
    said = (
        "On Zen 3 a cold start takes {} ms, 8 on Zen 4 ([figures](figures.md#control)) (`python -m benchmarks.sealed`)."
    )
    assert missing(said.replace("figures.md#control", "x").format("11.7")) == []
    assert missing(said.replace("figures.md#control", "x").format("11.3")) == ["11.3"]
    assert missing("On Zen 5 a step takes 7 ms.") == ["7"]
    with pytest.raises(AssertionError, match="no section control"):
        missing(said)
    with pytest.raises(AssertionError, match=r"no benchmarks\.magic"):
        missing("`python -m benchmarks.magic` prints 3.")


def test_every_frozen_figure_has_its_machine_and_its_commit() -> None:
    rows = [line for line in FROZEN.read_text().splitlines() if re.match(r"\| (?!what |---)", line)]
    assert len(rows) > 80
    for row in rows:
        what, figure, _, machine, when = (cell.strip() for cell in row.strip("|").split("|"))
        assert what and figure and machine and re.search(r"\b[0-9a-f]{8}$", when), row
