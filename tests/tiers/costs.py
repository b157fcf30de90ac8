"""What a run cost, and whether that is within the budget: tests/tiers/budget.json.

    python -m tests.tiers.costs FILE …                      the dearest items and folders
    python -m tests.tiers.costs --write durations FILE …    keep the durations of these runs
    python -m tests.tiers.costs --write budget FILE …       the same, and what each folder took as its share

A cost is processor seconds of the machine of reference: what was measured, divided by how much slower than there a
fixed piece of work ran between the tests. So a busy or a slow machine fails no budget.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from tests.tiers import durations

FILE = Path(__file__).with_name("budget.json")
MOST = 12 * 60 * 2  # seconds: twelve minutes of two cores
ABOVE = 1.5  # times its share that a folder may take
LEAST = 20.0  # seconds below which no folder is judged: its first item may pay for the template or a warm process
PROBE = 0.0007  # seconds of the fixed piece of work on the machine of reference, idle


@dataclass(frozen=True)
class Run:
    """One session of pytest.

    items: node id -> processor seconds as measured, seconds of the wall clock
    sharing: files whose items share a fixture
    slowness: how much longer than on the machine of reference work took
    whole: processor seconds of the session with all its processes, as measured
    """

    items: Mapping[str, tuple[float, float]]
    sharing: frozenset[str]
    slowness: float
    whole: float

    @classmethod
    def of(cls, states: Iterable[Mapping[str, Any]], *, whole: float) -> Self:
        items: dict[str, tuple[float, float]] = {}
        sharing: set[str] = set()
        probes: list[float] = []
        for state in states:
            items |= {name: (cpu, wall) for name, (cpu, wall) in state["costs"].items()}
            sharing |= set(state["sharing"])
            probes += state["probes"]
        return cls(items, frozenset(sharing), statistics.median(probes or [PROBE]) / PROBE, whole)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "sharing": sorted(self.sharing)}

    @classmethod
    def read(cls, path: Path) -> Self:
        stored = json.loads(path.read_text())
        items = {name: (cpu, wall) for name, (cpu, wall) in stored["items"].items()}
        return cls(items, frozenset(stored["sharing"]), stored["slowness"], stored["whole"])

    def costs(self) -> dict[str, float]:
        """Return the processor seconds of each item on the machine of reference."""
        return {name: cpu / self.slowness for name, (cpu, _) in self.items.items()}

    def besides(self) -> float:
        """Return what no item took: collection, servers that all items share, the controller."""
        return max(0.0, self.whole - sum(cpu for cpu, _ in self.items.values())) / self.slowness


def folder(nodeid: str) -> str:
    """Return the folder that has the budget of an item: of the two uppermost below tests/."""
    return "/".join(nodeid.partition("::")[0].split("/")[1:-1][:2]) or "."


def by_folder(runs: Iterable[Run]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for run in runs:
        for name, cost in run.costs().items():
            sums[folder(name)] += cost
        sums["(besides items)"] += run.besides()
    return dict(sums)


def judge(spent: Mapping[str, float], budget: Mapping[str, float]) -> list[str]:
    """Return what is above its budget, in words."""
    found = []
    for name, cost in sorted(spent.items(), key=lambda pair: -pair[1]):
        share = budget.get(name, 0.0)
        if cost > max(LEAST, ABOVE * share):
            found.append(f"tests/{name} took {cost:.0f} s of a processor; its share is {share:.0f} s")
    if (whole := sum(spent.values())) > MOST:
        found.append(f"the run took {whole:.0f} s of a processor; all of it may take {MOST} s")
    return found


def report(runs: list[Run]) -> str:
    """Return the ten dearest items and the dearest folders, as a text."""
    costs = Counter[str]()
    for run in runs:
        costs.update(run.costs())  # type: ignore[arg-type]
    spent = by_folder(runs)
    lines = [f"the ten dearest of {len(costs):,} items (seconds of a processor):"]
    lines += [f"{cost:8.1f}  {name}" for name, cost in costs.most_common(10)]
    lines.append("the dearest folders:")
    lines += [f"{cost:8.1f}  {name}" for name, cost in Counter(spent).most_common(10)]
    slow = ", ".join(f"{run.slowness:.2f}" for run in runs)
    lines.append(f"{sum(spent.values()):8.1f}  in all, of {MOST}; this machine took {slow} times the reference's time")
    return "\n".join(lines)


def write(runs: list[Run], *, as_budget: bool) -> None:
    """Keep the durations of these runs, with those of items that they did not run; with `as_budget` their costs too."""
    old = json.loads(durations.FILE.read_text()) if durations.FILE.exists() else {"files": {}, "items": {}}
    means: dict[str, list[float]] = defaultdict(list)
    ran: set[str] = set()
    dear: dict[str, dict[str, Any]] = {}
    for run in runs:
        for name, (_, wall) in run.items.items():
            file = name.partition("::")[0]
            ran.add(name)
            if wall / run.slowness >= durations.ALONE:
                dear[name] = {"seconds": round(wall / run.slowness, 1), "alone": file not in run.sharing}
            else:
                means[file].append(wall / run.slowness)
    kept = {name: found for name, found in old["items"].items() if name not in ran}
    files = old["files"] | {file: round(statistics.fmean(walls), 3) for file, walls in means.items()}
    root = Path(__file__).parents[2]
    files = {file: seconds for file, seconds in files.items() if (root / file).exists()}
    items = {name: found for name, found in (kept | dear).items() if (root / name.partition("::")[0]).exists()}
    durations.FILE.write_text(json.dumps({"files": files, "items": items}, indent=1, sort_keys=True) + "\n")
    if as_budget:
        budget = {name: round(cost, 1) for name, cost in sorted(by_folder(runs).items())}
        FILE.write_text(json.dumps(budget, indent=1) + "\n")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Judge or keep what runs of the tests cost.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--judge", action="store_true", help="exit with 1 where the budget is exceeded")
    parser.add_argument("--write", choices=("durations", "budget"), help="keep these runs as durations, or as both")
    arguments = parser.parse_args(words)
    runs = [Run.read(path) for path in arguments.files]
    print(report(runs))
    if arguments.write:
        write(runs, as_budget=arguments.write == "budget")
    over = judge(by_folder(runs), json.loads(FILE.read_text())) if arguments.judge else []
    for line in over:
        print(f"over budget: {line}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
