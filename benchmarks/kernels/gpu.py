"""The GPU benchmark: `python -m benchmarks.kernels.gpu [--quick] [--resume]`; part of `python -m benchmarks.kernels`.

Every contender runs in a CUDA graph over up to 32 layers of weights, the second-level cache flushed before each replay;
a figure is the median of the replays over the number of layers, in microseconds. Outputs are checked against float32
first. The byte limit is the bytes that must move over the bandwidth of a copy, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton

from benchmarks import machine
from benchmarks.gpu_timing import Cuda, graph_seconds
from benchmarks.kernels.gpu_contenders import CONTENDERS, Call
from benchmarks.kernels.gpu_grid import GpuInputs, GpuPoint, make_inputs, points
from benchmarks.kernels.gpu_peers import PeerMissingError
from benchmarks.kernels.gpu_prefill import PREFILL_SHARE, Prefill, measure_prefill

# Relative Frobenius error of y in bfloat16: roundings of x Aᵀ and of y itself; a missing adapter is above 0.3.
MOST_ERROR = 0.02
# The promise: geometric means over the grid, and the share of the byte limit with at least that many adapters.
PROMISED = {"vllm": 2.0, "csgmv": 1.5, "triton_v2": 1.15}
LIMIT_SHARE, LIMIT_DISTINCT = 0.75, 32
# Remarks that must stand beside a peer's figures.
NOTES = {"csgmv": "csgmv has tuned tables for the H200 alone; on other cards it takes its defaults"}


@dataclass(frozen=True)
class Measured:
    """One point: microseconds a layer of each contender, of the byte limit, and why others are missing."""

    point: GpuPoint
    distinct: int
    layers: int
    limit_us: float
    us: dict[str, float]
    skipped: dict[str, str]


@dataclass(frozen=True)
class Promise:
    """A figure beside its bar. `value` is None where it was not measured."""

    name: str
    value: float | None
    bar: float
    at_most: bool = False

    @property
    def holds(self) -> bool:
        """Whether it was measured and is good enough."""
        if self.value is None:
            return False
        return self.value <= self.bar if self.at_most else self.value >= self.bar


def run(*, quick: bool, seed: int, out: Path | None, resume: bool = False, budget: float = 1500.0) -> int:
    """Measure the grid and the prefill, print tables, write JSON under `out`. 0 when every promise holds, else 1.

    Raises RuntimeError where there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("the GPU benchmark needs a CUDA device")
    out = out or machine.RESULTS / machine.gpu_kind()
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"kernels_gpu{'_quick' if quick else ''}.json"
    results = read_json(file) if resume and file.exists() else []
    done = {result.point for result in results}
    bandwidth = Cuda().copy_bytes_per_second()
    about = {
        "machine": machine.describe(),
        "triton": triton.__version__,
        "seed": seed,
        "copy_bandwidth_gb_s": round(bandwidth / 1e9, 1),
    }
    prefill = measure_prefill(seed)
    deadline = time.monotonic() + budget
    wanted = [point for point in points(quick) if point not in done]
    print(header())
    for point in wanted:
        if time.monotonic() > deadline:
            print("the budget is over; go on with --resume")
            break
        results.append(measure(point, seed, bandwidth))
        print(row(results[-1]), flush=True)
        write_json(file, results, prefill, about)
    notes = "\n".join(f"{note}." for name, note in NOTES.items() if any(name in result.us for result in results))
    print(f"\n{promise_lines(promises(results, prefill))}\n{notes}\n\n{file}")
    return 0 if all(promise.holds for promise in promises(results, prefill)) else 1


def measure(point: GpuPoint, seed: int, bandwidth: float) -> Measured:
    """Time every contender at one point. Raises RuntimeError when ours is wrong; a peer that fails is named."""
    inputs = make_inputs(point, seed, torch.device("cuda"))
    us: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for name, make in CONTENDERS.items():
        try:
            call = make(inputs)
            check(name, call, inputs)
            us[name] = 1e6 * graph_seconds(lambda layer, call=call: call(layer, inputs.y), inputs.layers)  # type: ignore[misc]
        except PeerMissingError as error:
            skipped[name] = str(error)
        except Exception as error:
            if name == "ours":
                raise
            skipped[name] = f"{type(error).__name__}: {str(error)[:200]}"
        torch.cuda.empty_cache()
    limit = 1e6 * point.limit_bytes(inputs.ranks) / bandwidth
    return Measured(point, len(inputs.ranks), inputs.layers, limit, us, skipped)


def check(name: str, call: Call, inputs: GpuInputs) -> None:
    """Raise RuntimeError unless the last layer's result is near float32's."""
    y, layer = inputs.y.clone(), inputs.layers - 1
    call(layer, y)
    expected = inputs.expected(layer)
    error = float((y.float() - expected).norm() / expected.norm())
    if not error < MOST_ERROR:
        raise RuntimeError(f"{name} is wrong: relative error {error:.3f}")


def promises(results: Sequence[Measured], prefill: Prefill | None) -> list[Promise]:
    """Every figure that is promised, over the points where both sides were measured."""
    found = [
        Promise(f"× {name} (geometric mean)", _mean(r.us[name] / r.us["ours"] for r in results if name in r.us), bar)
        for name, bar in PROMISED.items()
    ]
    many = (r.limit_us / r.us["ours"] for r in results if r.distinct >= LIMIT_DISTINCT)
    found.append(Promise(f"of the byte limit, {LIMIT_DISTINCT} adapters or more", _mean(many), LIMIT_SHARE))
    share = None if prefill is None else prefill.share
    return [*found, Promise("of the base GEMMs' time, 8192 tokens of prefill", share, PREFILL_SHARE, at_most=True)]


def header() -> str:
    """Columns of `row`."""
    names = "".join(f"{name:>11}" for name in CONTENDERS)
    return f"{'site':8}{'rows':>5} {'adapters':10}{'ranks':6}{'limit':>8}{names}   (µs a layer)"


def row(result: Measured) -> str:
    """One line of the table."""
    cells = "".join(f"{result.us[name]:11.1f}" if name in result.us else f"{'-':>11}" for name in CONTENDERS)
    point = result.point
    adapters = f"{point.distribution} {result.distinct}"
    return f"{point.site:8}{point.batch:>5} {adapters:10.10}{point.ranks:6}{result.limit_us:8.1f}{cells}"


def promise_lines(found: Iterable[Promise]) -> str:
    """Every promise beside its bar."""
    lines = []
    for promise in found:
        value = "not measured" if promise.value is None else f"{promise.value:.2f}"
        bar = f"{'at most' if promise.at_most else 'at least'} {promise.bar}"
        lines.append(f"{value:>12} {promise.name}: {bar}, {'holds' if promise.holds else 'does not hold'}")
    return "\n".join(lines)


def write_json(file: Path, results: Sequence[Measured], prefill: Prefill | None, about: dict[str, object]) -> None:
    """Everything measured, with the machine it was measured on; replaced as a whole."""
    data = {
        "about": about,
        "notes": NOTES,
        "prefill": None if prefill is None else asdict(prefill),
        "promises": [{**asdict(one), "holds": one.holds} for one in promises(results, prefill)],
        "points": [asdict(result) for result in results],
    }
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1) + "\n")
    temporary.replace(file)


def read_json(file: Path) -> list[Measured]:
    """The points of an earlier run."""
    return [Measured(**{**one, "point": GpuPoint(**one["point"])}) for one in json.loads(file.read_text())["points"]]


def _mean(ratios: Iterable[float]) -> float | None:
    values = list(ratios)
    return statistics.geometric_mean(values) if values else None


def main(arguments: list[str] | None = None) -> int:
    """Command line of `run`. 2 where there is no CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 points of the grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the results (default: one for this kind of GPU)")
    parser.add_argument("--resume", action="store_true", help="keep the points of an earlier results file")
    parser.add_argument("--budget", type=float, default=1500, metavar="SECONDS", help="start no point after that")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("GPU: no CUDA here, not measured", file=sys.stderr)
        return 2
    return run(quick=options.quick, seed=options.seed, out=options.out, resume=options.resume, budget=options.budget)


if __name__ == "__main__":
    sys.exit(main())
