"""The typed results of a plan: each number with its unit and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Source(StrEnum):
    """Where a number comes from, the surest first."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    TRANSFERRED = "transferred"
    CATALOGUE = "catalogue"


def weakest(sources: Iterable[Source]) -> Source:
    """Return the least sure of `sources`: a plan is as sure as its weakest step."""
    order = list(Source)
    return max(sources, key=order.index, default=Source.MEASURED)


@dataclass(frozen=True, slots=True)
class Step:
    """One of the 13 steps of a plan, as it is printed.

    number: 1 to 13, as docs/capacity.md numbers them
    inputs: name → value with its unit, as text
    value: the result as a number in `unit`; None where the result is no single number
    warnings: sentences that stay on every page of the plan
    worked: the formula with the numbers of this plan; empty where there is nothing to compute
    """

    number: int
    title: str
    inputs: Mapping[str, str]
    formula: str
    result: str
    value: float | None
    unit: str
    source: Source
    warnings: tuple[str, ...] = ()
    worked: str = ""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number between two bounds: `low` ≤ `value` ≤ `high`, which hold it with probability `confidence`."""

    value: float
    low: float
    high: float
    confidence: float = 0.9

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of seconds: mean and percentiles."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Latencies that customers feel at one rate.

    rate: requests per second that arrive at all replicas together
    load: `rate` / the highest rate at which all requests are served
    attainment: share of requests within the promise, over the seeds
    output_rate: output tokens per second
    ttft, itl, tpot: seconds; tpot is a request's mean time per output token after the first
    hit: share of adapter requests that found their adapter resident; busy: share of time in which a step ran
    requests, seeds: how many were simulated or measured
    backlog: at least this share of calls waited for their first token when the last one arrived, with 90 % confidence
    """

    rate: float
    load: float
    attainment: Interval
    output_rate: float
    ttft: Spread
    itl: Spread
    tpot: Spread
    hit: float
    busy: float
    refused: float
    requests: int
    seeds: int
    backlog: float = 0.0
    source: Source = Source.SIMULATED


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The largest rate that keeps the promise.

    mu: replicas → requests per second of all of them together, the lower bound of whose attainment is ≥ α
    points: replicas → the chosen point
    next_fails: replicas → why the next rate fails, in one sentence
    breaks: replicas → the requests per second at which attainment is α in the mean; empty where none was asked for
    settings: the engine's settings that were searched, by flag
    """

    mu: Mapping[int, float]
    points: Mapping[int, CurvePoint]
    next_fails: Mapping[int, str]
    breaks: Mapping[int, Interval] = field(default_factory=dict)
    settings: Mapping[str, int] = field(default_factory=dict)
    source: Source = Source.SIMULATED
    warnings: tuple[str, ...] = ()

    def ceiling(self, replicas: int, capacity: float) -> float:
        """Return the load that `replicas` bear: mu / `capacity`, the highest rate of one replica times `replicas`."""
        return self.mu[replicas] / (capacity * replicas)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """One replica's memory by kind, in bytes.

    total: of the accelerator, or what a replica on a CPU may take
    usable: `total` × the share that a replica takes
    kv_tokens: tokens whose KV fits; sequences: running ones that fit at the workload's mean length
    """

    total: int
    usable: int
    weights: int
    adapters: int
    kv: int
    workspace: int
    kv_tokens: int
    sequences: int
    source: Source = Source.CATALOGUE

    @property
    def free(self) -> int:
        """Bytes that no kind takes."""
        return self.total - self.weights - self.adapters - self.kv - self.workspace

    def kinds(self) -> dict[str, int]:
        """Return the bar of the page: kind → bytes."""
        return {
            "weights": self.weights,
            "adapters": self.adapters,
            "KV cache": self.kv,
            "workspace": self.workspace,
            "free": self.free,
        }


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Which share of requests finds its adapter resident.

    hit: share; cold_starts: loads per second; distinct: mean number of adapters in a batch of `batch`
    """

    slots: int
    hit: float
    cold_starts: float
    batch: int
    distinct: float
    source: Source = Source.SIMULATED
