"""The outcome of the calls of one run, simulated or real."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from capacity.results import Spread
from capacity.workload import Arrival, Workload


@dataclass(slots=True)
class CallResult:
    """The outcome of one call. ttft: seconds, inf where it was refused or never began; gaps: seconds between tokens"""

    arrival: Arrival
    ttft: float = float("inf")
    gaps: list[float] = field(default_factory=list)
    cold: bool = False
    ended: float = float("inf")

    @property
    def tpot(self) -> float:
        """Return the mean seconds per output token after the first; 0 for a single token."""
        if len(self.gaps) + 1 < self.arrival.output:
            return float("inf")
        return sum(self.gaps) / len(self.gaps) if self.gaps else 0.0


@dataclass(slots=True)
class TimedCall:
    """The outcome of a call, in seconds of one clock. tokens: when each arrived; none where the replica was full"""

    sent: float
    tokens: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of one seed, its warm-up left out. seconds: from the first counted arrival to the last one's"""

    calls: tuple[CallResult, ...]
    seconds: float
    ended: float
    busy: float
    loads: int
    preempted: int

    def attainment(self, workload: Workload) -> float:
        """Return the share of calls within what their class is promised."""
        kept = sum(within(call, workload) for call in self.calls)
        return kept / max(1, len(self.calls))

    @property
    def output_rate(self) -> float:
        """Return output tokens per second, until the last call ended."""
        tokens = sum(len(call.gaps) + 1 for call in self.calls if call.ttft < float("inf"))
        return tokens / max(1e-9, self.ended)

    def ttft(self) -> npt.NDArray[np.float64]:
        """Return the seconds to the first token of calls that got one."""
        return np.array([call.ttft for call in self.calls if call.ttft < float("inf")] or [0.0])

    def itl(self) -> npt.NDArray[np.float64]:
        """Return the seconds between tokens, of all calls."""
        return np.array([gap for call in self.calls for gap in call.gaps] or [0.0])

    def tpot(self) -> npt.NDArray[np.float64]:
        """Return each served call's mean seconds per token."""
        return np.array([t for call in self.calls if (t := call.tpot) < float("inf")] or [0.0])

    @property
    def hit(self) -> float:
        """Return the share of adapter calls whose adapter was resident."""
        adapted = [call for call in self.calls if call.arrival.adapter is not None]
        return 1.0 - sum(call.cold for call in adapted) / max(1, len(adapted))

    @property
    def waiting(self) -> int:
        """Return how many calls had no first token yet when the last one arrived."""
        last = self.calls[-1].arrival.at
        return sum(last < call.arrival.at + call.ttft < float("inf") for call in self.calls)

    @property
    def backlog(self) -> float:
        """Return the share of calls that had no first token yet when the last one arrived."""
        return self.waiting / max(1, len(self.calls))

    @property
    def refused(self) -> float:
        """Return the share of calls that never began."""
        return sum(call.ttft == float("inf") for call in self.calls) / max(1, len(self.calls))


def within(call: CallResult, workload: Workload) -> bool:
    """Return whether a call kept its promise."""
    promise = workload.promises[call.arrival.latency_class]
    return call.ttft <= promise.ttft and call.tpot <= promise.tpot


def spread(values: npt.NDArray[np.float64]) -> Spread:
    """Return mean and percentiles."""
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(float(values.mean()), float(p50), float(p95), float(p99))
