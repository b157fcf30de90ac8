"""Predicts public measurements of other engines on GPUs: from the catalogue alone, and from five points of each
configuration.

    python -m benchmarks.capacity.public_rows WHEEL_OR_FOLDER [--seed 1] [--draws 3] [--out FOLDER]

WHEEL_OR_FOLDER: the wheel of aiconfigurator-core, a folder with it, or its file silicon_sample.csv (ai-dynamo/
aiconfigurator, Apache-2.0), which `pip download aiconfigurator-core==0.12.0 --no-deps --only-binary :all:` gets. Rows:
Llama-3.1 8B and 70B, Qwen3 32B; vLLM, SGLang, TensorRT-LLM; H100, H200, B200, GB200; one replica of 1 to 8 cards. A
configuration is a model, an engine with its version, a card, a precision, and a number of cards. Its five points are
drawn at random, --draws times; the errors are of all other rows whose cell was not drawn. Beside them stands a power
law of batch, prompt and output, fitted to the same points. Depends on the rows and the seed alone. The exit status is 1
where a bar is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import capacity
from benchmarks import machine
from benchmarks.capacity.silicon import HINT, Configuration, Point, read
from benchmarks.capacity.steady import catalogue_model, fitted, kv_room, throughput
from capacity.catalogue import Accelerator, read_catalogue

CATALOGUE = Path(capacity.__file__).parent / "accelerators.toml"
POINTS = 5
FITTED, ALONE, POWERS = "five points", "catalogue alone", "power law"
# Predictor, figure, largest relative error of the throughput.
BARS = ((FITTED, "median", 0.07), (FITTED, "mean", 0.12), (ALONE, "median", 0.20))
Rows = Mapping[Configuration, Sequence[Point]]


def errors(
    configuration: Configuration, points: Sequence[Point], card: Accelerator, chance: np.random.Generator, draws: int
) -> dict[str, list[float]]:
    """Return predictor → relative errors of the throughput: of all points, and of those that a draw left out."""
    prior, room = catalogue_model(configuration, card), kv_room(configuration, card)
    out: dict[str, list[float]] = {ALONE: _off(throughput(prior, points, room), points), FITTED: [], POWERS: []}
    for _ in range(draws if len(points) > POINTS else 0):
        drawn = set(map(int, chance.choice(len(points), POINTS, replace=False)))
        given = [points[index] for index in drawn]
        cells = {point.cell for point in given}
        held = [point for point in points if point.cell not in cells]
        if held:
            out[FITTED] += _off(throughput(fitted(prior, given, room), held, room), held)
            out[POWERS] += _off(power_law(given, held), held)
    return out


def power_law(given: Sequence[Point], asked: Sequence[Point]) -> np.ndarray:
    """Return throughputs that are powers of batch, prompt and output, fitted to `given`: prediction without a model."""
    names = ("batch", "prompt", "output")
    centre = np.mean([[np.log(getattr(point, name)) for name in names] for point in given], axis=0)

    def matrix(points: Sequence[Point]) -> np.ndarray:
        logs = np.array([[np.log(getattr(point, name)) for name in names] for point in points])
        return np.column_stack([np.ones(len(points)), logs - centre])

    # The least norm where five cells do not vary in all three.
    powers = np.linalg.lstsq(matrix(given), np.log([point.throughput for point in given]), rcond=1e-6)[0]
    return np.asarray(np.exp(matrix(asked) @ powers), np.float64)


def compare(rows: Rows, catalogue: Mapping[str, Accelerator], seed: int, draws: int) -> dict[str, Any]:
    """Return the figures of both predictors, of all rows and by model, engine and card."""
    everything: dict[str, list[float]] = {FITTED: [], POWERS: [], ALONE: []}
    groups: dict[str, dict[str, list[float]]] = {}
    several = sorted(rows.items(), key=lambda item: str(item[0]))
    for number, (configuration, points) in enumerate(several):
        found = errors(
            configuration, points, catalogue[configuration.card], np.random.default_rng([seed, number]), draws
        )
        name = f"{configuration.dense.name}, {configuration.engine}, {configuration.card}"
        for predictor, off in found.items():
            everything[predictor] += off
            groups.setdefault(name, {}).setdefault(predictor, []).extend(off)
    return {
        "rows": sum(map(len, rows.values())),
        "configurations": len(rows),
        "fitted_configurations": sum(len(points) > POINTS for points in rows.values()),
        "draws": draws,
        "seed": seed,
        "errors": {predictor: _figures(off) for predictor, off in everything.items() if off},
        "groups": {
            name: {predictor: _figures(off) for predictor, off in found.items() if off}
            for name, found in sorted(groups.items())
        },
    }


def report(data: Mapping[str, Any]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether every bar is reached. data: as `compare` returns it"""
    lines = [
        f"{data['rows']} rows of {data['configurations']} configurations, {data['fitted_configurations']} of them with "
        f"more than {POINTS}; {data['draws']} draws; error of the throughput in %",
        f"{'median, mean':<40}{'rows':>6}" + "".join(f"{name:>18}" for name in (ALONE, FITTED, POWERS)),
    ]
    for name, found in [*data["groups"].items(), ("all", data["errors"])]:
        line = f"{name:<40}{found[ALONE]['count']:>6}"
        for predictor in (ALONE, FITTED, POWERS):
            one = found.get(predictor)
            line += f"{100 * one['median']:11.1f}{100 * one['mean']:7.1f}" if one else ""
        lines.append(line)
    lines.append("")
    fine = True
    for predictor, figure, bar in BARS:
        value = data["errors"][predictor][figure]
        fine = fine and value <= bar
        words = "" if value <= bar else "  MISSED"
        lines.append(f"{predictor + ', ' + figure:<26}{100 * value:6.1f} %  <= {100 * bar:.0f} %{words}")
    return lines, fine


def _off(predicted: np.ndarray, points: Sequence[Point]) -> list[float]:
    return [float(abs(one / point.throughput - 1)) for one, point in zip(predicted, points, strict=True)]


def _figures(off: Sequence[float]) -> dict[str, float]:
    return {"count": len(off), "median": float(np.median(off)), "mean": float(np.mean(off)), "largest": max(off)}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("rows", type=Path, nargs="?", help=f"a wheel or a folder; get the wheel by `{HINT}`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draws", type=int, default=3, help="of five points of each configuration")
    parser.add_argument("--out", type=Path, help="folder of the results")
    options = parser.parse_args()
    if options.rows is None:
        parser.error(f"the rows are not shipped; get the wheel by `{HINT}`, and give its path")
    if options.draws < 1:
        parser.error("--draws is at least 1")
    about = machine.describe()
    try:
        rows = read(options.rows)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    data = compare(rows, read_catalogue(CATALOGUE), options.seed, options.draws)
    lines, fine = report(data)
    print("\n".join(lines))
    folder = options.out or machine.RESULTS / machine.cpu_kind(about)
    source = "silicon_sample.csv of ai-dynamo/aiconfigurator, Apache-2.0"
    print(machine.write_suite(folder, "public_rows", {"machine": about, "source": source, **data}))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
