"""Times the steps of a real engine over a grid, or runs recorded arrivals on it; prints one JSON object a line.

    python -m serving.calibration --model FOLDER [--seconds 90] [--own-clock] [--cells FILE] [flags of a replica]

`capacity calibrate` starts it and fits what it prints. With --cells, each line of the file is a trace
(`serving.calibration.cells.Cell`), and a line of what became of its calls is printed for each; before each and after
the last, reference steps tell how fast the machine is.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

import msgspec
import torch

from serving.about import about
from serving.calibration.adapters import RandomAdapters
from serving.calibration.cells import Cell, run_cell
from serving.calibration.driver import Driver, SkippingClock
from serving.calibration.grid import Grid
from serving.calibration.machine import probe
from serving.config import add_flags, from_args
from serving.errors import ConfigError, EngineError
from serving.replica import Base, build_engine
from serving.simulation.work import StepWork

_PASSES = 3


class Calibration:
    """One engine and what is printed of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        config = from_args(options)
        base = Base.from_dir(config.model)
        clock = SkippingClock(own=options.own_clock)
        engine = build_engine(config, base, RandomAdapters(base.config), clock=clock)
        self.number = 0  # of the pass, or of the cell
        self._printed: str | None = None  # the kind of line that a step prints; None: steps are not told
        with torch.inference_mode():
            self.driver = Driver(engine, clock, self._step)
        self.about = about(config, base, engine)
        self.ranks = tuple(int(rank) for rank in options.ranks.split(","))

    def grid(self, seconds: float, seed: int) -> None:
        """Run three interleaved passes within `seconds`, with a probe of the machine before each."""
        started = self.driver.clock()
        grid = Grid(self.driver, self.ranks, seed)
        grid.warm_up()
        self._printed = "step"
        first = self.driver.clock()
        for number in range(_PASSES):
            self.number = number
            _print({"kind": "probe", "pass": number} | probe(self.driver.clock))
            until = first + (started + seconds - first) * (number + 1) / _PASSES
            for done, of in grid.pass_over(until):
                _print({"kind": "progress", "done": number * of + done, "of": _PASSES * of})
            for took, computed, paused in grid.loads:
                _print({"kind": "load", "seconds": took, "computed": computed, "paused": paused})
            grid.loads = []
        self._printed = None

    def cells(self, file: Path, seed: int) -> None:
        """Run each line of a file as a cell, with reference steps before each and after the last."""
        reference, lines = Grid(self.driver, self.ranks, seed), file.read_bytes().splitlines()
        reference.reference()  # its shared prompt is computed, unseen
        for self.number, line in enumerate(lines):
            self._refer(reference)
            calls = run_cell(self.driver, msgspec.json.decode(line, type=Cell))
            _print({"kind": "cell", "calls": [dataclasses.asdict(call) for call in calls]})
        self.number = len(lines)
        self._refer(reference)

    def _refer(self, reference: Grid) -> None:
        self._printed = "reference"
        reference.reference()
        self._printed = None

    def close(self) -> None:
        """Free the engine's memory."""
        self.driver.engine.adapters.close()

    def _step(self, work: StepWork, seconds: float) -> None:
        if self._printed is not None:
            _print({"kind": self._printed, "pass": self.number, "seconds": seconds} | dataclasses.asdict(work))


def _print(line: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m serving.calibration", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="for the grid, of the clock that is used")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", default="8,16,32", help="ranks of the adapters, in turn")
    parser.add_argument("--own-clock", action="store_true", help="the processors' seconds; use --threads 1 with it")
    parser.add_argument("--cells", type=Path, help="arrivals to run instead of the grid")
    parser.add_argument("--with-grid", action="store_true", help="the grid first, then --cells")
    add_flags(parser)
    options = parser.parse_args()
    try:
        calibration = Calibration(options)
        _print({"kind": "about"} | calibration.about)
        with torch.inference_mode():
            if options.cells is None or options.with_grid:
                calibration.grid(options.seconds, options.seed)
            if options.cells is not None:
                calibration.cells(options.cells, options.seed)
            calibration.close()
    except (ConfigError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
