"""Step 1, the workload: classes and what they are promised, the joint sample of calls, arrivals, adapters."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
import numpy.typing as npt

from capacity.errors import PlanRefused
from protocol.latency import LatencyClass

CLASSES: tuple[LatencyClass, ...] = get_args(LatencyClass)
_LARGEST = 64 << 20
_LONGEST = 1 << 20
_MOST_ADAPTERS = 1_000_000


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """Step 2, of one class: seconds to the first token, and per token after it, of a share `attained` of requests."""

    ttft: float
    tpot: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of call: prompt and output tokens, the prompt tokens that an earlier call brought into the prefix cache.

    weight: how often it comes, relative to the others
    """

    latency_class: str = "interactive"
    prompt: int
    cached: int = 0
    output: int
    weight: float = 1.0


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of an hour. cv2: Var/mean² of the gaps between arrivals: 1 for Poisson's, more for bursts

    adapters: how many; zipf: exponent of their popularity; ranks: rank → share of adapters
    base_share: share of calls for the base model itself
    alpha: share of requests that the promise is kept for; failures: replicas that may die at once
    """

    rate: float
    promises: dict[str, Promise]
    samples: tuple[Sample, ...]
    cv2: float = 1.0
    adapters: int = 0
    zipf: float = 1.0
    ranks: dict[str, float] = msgspec.field(default_factory=lambda: {"16": 1.0})
    base_share: float = 0.0
    alpha: float = 0.99
    failures: int = 1

    # -- step 1's formulas ------------------------------------------------------------------------------------------

    @property
    def input_rate(self) -> float:
        """Return prompt tokens to compute per second: λE[P(1−h)]."""
        return self.rate * self.mean(lambda sample: sample.prompt - sample.cached)

    @property
    def output_rate(self) -> float:
        """Return output tokens per second: λE[O]."""
        return self.rate * self.mean(lambda sample: sample.output)

    def mean(self, of: Callable[[Sample], float]) -> float:
        """Return the weighted mean of a number of each sample."""
        return sum(s.weight * of(s) for s in self.samples) / sum(s.weight for s in self.samples)

    @property
    def longest(self) -> int:
        """Return the tokens of the longest call, prompt and output together."""
        return max(sample.prompt + sample.output for sample in self.samples)

    def popularity(self) -> npt.NDArray[np.float64]:
        """Return the share of adapter calls that each adapter gets, float64 [adapters], most popular first."""
        shares = np.arange(1, self.adapters + 1, dtype=np.float64) ** -self.zipf
        return np.asarray(shares / shares.sum())

    def rank_of(self, adapter: int) -> int:
        """Return the rank of an adapter: ranks are dealt evenly over popularity, so that none is the rarest's alone."""
        shares = list(self.ranks.items())
        total, place = sum(share for _, share in shares), (adapter * 0.6180339887498949) % 1.0
        for rank, share in shares:
            place -= share / total
            if place < 0:
                return int(rank)
        return int(shares[-1][0])


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call of a drawn trace. adapter: its number, None for the base; at: seconds from the beginning"""

    at: float
    latency_class: str
    prompt: int
    cached: int
    output: int
    adapter: int | None


def draw(workload: Workload, rate: float, requests: int, seed: int) -> list[Arrival]:
    """Draw `requests` arrivals at `rate` per second. Gaps scale with the rate, so that one seed's traces of two rates
    differ by their pace alone."""
    rng = np.random.default_rng(seed)
    shape = 1.0 / workload.cv2
    gaps = rng.gamma(shape, 1.0 / shape, requests)
    times = np.cumsum(gaps) / rate
    weights = np.array([sample.weight for sample in workload.samples], np.float64)
    kinds = rng.choice(len(weights), requests, p=weights / weights.sum())
    base = rng.random(requests) < workload.base_share
    if workload.adapters:
        adapters = rng.choice(workload.adapters, requests, p=workload.popularity())
    else:
        adapters, base = np.zeros(requests, np.int64), np.ones(requests, np.bool_)
    return [
        Arrival(
            float(at),
            (sample := workload.samples[kind]).latency_class,
            sample.prompt,
            sample.cached,
            sample.output,
            None if is_base else int(adapter),
        )
        for at, kind, adapter, is_base in zip(times, kinds, adapters, base, strict=True)
    ]


# -- from files -----------------------------------------------------------------------------------------------------


def read_workload(path: Path) -> Workload:
    """Read a workload from a TOML or JSON file. Raises PlanRefused with the field that is wrong."""
    data = read_bytes(path)
    try:
        if path.suffix == ".toml":
            workload = msgspec.convert(tomllib.loads(data.decode()), Workload, strict=False)
        else:
            workload = msgspec.json.decode(data, type=Workload)
    except (msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanRefused(1, f"{path}: {error}") from error
    check(workload)
    return workload


def check(workload: Workload) -> None:
    """Raise PlanRefused for a workload with negative, absurd or contradicting figures."""
    w = workload
    _need(0 < w.rate <= 1e6, f"rate {w.rate:g}: above 0 and at most 1,000,000 requests per second")
    _need(0.05 <= w.cv2 <= 100, f"cv2 {w.cv2:g}: between 0.05 and 100")
    _need(0 <= w.adapters <= _MOST_ADAPTERS, f"adapters {w.adapters}: between 0 and {_MOST_ADAPTERS:,}")
    _need(0 <= w.zipf <= 5, f"zipf {w.zipf:g}: between 0 and 5")
    _need(0 <= w.base_share <= 1, f"base_share {w.base_share:g}: between 0 and 1")
    _need(0.5 <= w.alpha < 1, f"alpha {w.alpha:g}: at least 0.5 and below 1; no run can prove that all are served")
    _need(0 <= w.failures <= 100, f"failures {w.failures}: between 0 and 100")
    _need(bool(w.samples), "no samples: at least one kind of call")
    for sample in w.samples:
        _need(sample.latency_class in w.promises, f"class {sample.latency_class!r} has no promise")
        _need(1 <= sample.prompt <= _LONGEST, f"prompt {sample.prompt}: between 1 and {_LONGEST:,} tokens")
        _need(1 <= sample.output <= _LONGEST, f"output {sample.output}: between 1 and {_LONGEST:,} tokens")
        _need(0 <= sample.cached < sample.prompt, f"cached {sample.cached}: at least 0 and below the prompt's tokens")
        _need(0 < sample.weight < math.inf, f"weight {sample.weight:g}: above 0")
    for name, promise in w.promises.items():
        _need(name in CLASSES, f"class {name!r}: one of {', '.join(CLASSES)}")
        _need(0 < promise.ttft < 86_400 and 0 < promise.tpot < 3_600, f"the promise of {name}: seconds above 0")
    _need(bool(w.ranks), "no ranks: such as {16: 1.0}")
    for rank, share in w.ranks.items():
        _need(rank.isdigit() and 1 <= int(rank) <= 256 and share > 0, f"rank {rank}: 1 to 256, with a share above 0")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise PlanRefused(1, otherwise)


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes. Raises PlanRefused where it cannot be read or is too large."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanRefused(1, f"{path}: {error.strerror}") from error
    if len(data) > _LARGEST:
        raise PlanRefused(1, f"{path}: larger than {_LARGEST >> 20} MiB")
    return data
