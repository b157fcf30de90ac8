"""The CPU grid: every contender at every point, checked, then timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.kernels import contenders
from benchmarks.kernels.contenders import PEERS, Prepare, Step, Unsupported
from benchmarks.kernels.grid import Inputs, Point, make_inputs
from benchmarks.kernels.limits import Limits
from benchmarks.kernels.timing import SAMPLES, interleaved_medians

OURS, BASE = "ours", "base_gemm"
# Where ours is nearly as fast as the best peer, chance would decide between them: that point is measured anew, with so
# many times the samples and without the peers that are far off.
CLOSE, CLOSE_SAMPLES, FAR_OFF = (0.8, 1.1), 5, 1.5
# Largest error of a value: of float32 sums in another order; of bfloat16, where peers round v and the product too.
TOLERANCE = {"float32": 2e-4, "bfloat16": 0.15}


class WrongResult(Exception):
    """A contender's output differs from the reference: its time would mean nothing."""


@dataclass(frozen=True)
class Measured:
    """Seconds of each contender at one point, and the least the machine could take."""

    point: Point
    threads: int
    seconds: dict[str, float]
    limit_seconds: float
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def best_peer(self) -> str:
        """The fastest of the peers."""
        return min((name for name in self.seconds if name not in (OURS, BASE)), key=self.seconds.__getitem__)

    @property
    def speedup(self) -> float:
        """How many times faster than the best peer ours is."""
        return self.seconds[self.best_peer] / self.seconds[OURS]

    @property
    def share_of_base(self) -> float:
        """Our time over the base matmul's."""
        return self.seconds[OURS] / self.seconds[BASE]

    @property
    def share_of_limit(self) -> float:
        """The physical limit's time over ours: 1 is perfect."""
        return self.limit_seconds / self.seconds[OURS]


def measure(
    wanted: list[Point], *, seed: int, limits: Limits, vllm_ops: Path | None, deadline: float
) -> Iterator[Measured]:
    """Measure point after point until `deadline` (of time.monotonic). Raises WrongResult."""
    peers = dict(PEERS)
    if vllm_ops is not None:
        peers["vllm_cpu"] = contenders.vllm_cpu(vllm_ops)
    with torch.inference_mode():
        for number, point in enumerate(wanted):
            if time.monotonic() >= deadline:
                return
            yield _measure_point(point, seed + number, limits, peers)


def _measure_point(point: Point, seed: int, limits: Limits, peers: dict[str, Prepare]) -> Measured:
    inputs = make_inputs(point, seed)
    expected = inputs.expected()
    steps: dict[str, Step] = {}
    skipped = {}
    for name, prepare in {OURS: contenders.ours, **peers}.items():
        try:
            steps[name] = prepare(inputs)
        except Unsupported as reason:
            skipped[name] = str(reason)
        else:
            _check(name, steps[name], inputs, expected)
    steps[BASE] = contenders.base_gemm(inputs)
    y = inputs.y.clone()
    calls = {name: partial(step, y) for name, step in steps.items()}
    measured = Measured(point, torch.get_num_threads(), interleaved_medians(calls), limits.seconds(point), skipped)
    least, most = CLOSE
    if not least <= measured.speedup < most:
        return measured
    near = {name for name, seconds in measured.seconds.items() if seconds < FAR_OFF * measured.seconds[OURS]}
    again = interleaved_medians({name: calls[name] for name in near if name != BASE}, CLOSE_SAMPLES * SAMPLES)
    return replace(measured, seconds=measured.seconds | again)


def _check(name: str, step: Step, inputs: Inputs, expected: torch.Tensor) -> None:
    y = inputs.y.clone()
    step(y)
    error = (y.float() - expected.float()).abs().max().item()
    if not error <= TOLERANCE[inputs.point.dtype]:
        raise WrongResult(f"{name} is off by {error:.3g} at {inputs.point}")
