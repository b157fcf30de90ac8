"""Workloads from what was recorded: the platform's usage, as aggregates, and traces of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from capacity.errors import PlanRefused
from capacity.workload import Promise, Sample, Workload, check, read_bytes


class UsageBucket(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one class within a bucket of lengths, as the platform counts them: no tenant, no text.

    prompt, cached, output: mean tokens of the bucket's calls
    """

    latency_class: str
    prompt: int
    cached: int
    output: int
    calls: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's account of a stretch of time. calls_by_adapter: calls of each model, most called first

    gaps_cv2: Var/mean² of gaps between arrivals within minutes, None where arrivals were not kept
    """

    seconds: float
    buckets: tuple[UsageBucket, ...]
    calls_by_adapter: tuple[int, ...] = ()
    base_calls: int = 0
    ranks: dict[str, float] = msgspec.field(default_factory=lambda: {"16": 1.0})
    refused: int = 0
    gaps_cv2: float | None = None


def from_usage(usage: Usage, promises: Mapping[str, Promise], **terms: float | int) -> tuple[Workload, tuple[str, ...]]:
    """Make a workload of usage, refused calls included. terms: `alpha`, `failures`

    Returns it with what stays on the plan's pages. Raises PlanRefused for usage without a call.
    """
    served = sum(bucket.calls for bucket in usage.buckets)
    if served <= 0 or usage.seconds <= 0:
        raise PlanRefused(1, "the usage has no calls: a plan needs at least one day of them, or a workload file")
    warnings = []
    if usage.seconds < 86_400:
        warnings.append(f"The usage covers {usage.seconds / 3600:.1f} hours: no day, let alone a week, is known.")
    elif usage.seconds < 2 * 86_400:
        warnings.append("The usage covers a single day: weekends and growth are unknown.")
    if usage.gaps_cv2 is None:
        warnings.append("Arrival times were not kept: bursts are unknown, and arrivals are taken to be Poisson's.")
    adapter_calls = tuple(calls for calls in usage.calls_by_adapter if calls > 0)
    workload = Workload(
        rate=(served + usage.refused) / usage.seconds,
        promises=dict(promises),
        samples=tuple(
            Sample(latency_class=b.latency_class, prompt=b.prompt, cached=b.cached, output=b.output, weight=b.calls)
            for b in usage.buckets
            if b.calls > 0
        ),
        cv2=min(100.0, max(0.05, usage.gaps_cv2 if usage.gaps_cv2 is not None else 1.0)),
        adapters=len(adapter_calls),
        zipf=zipf_of(adapter_calls),
        ranks=usage.ranks,
        base_share=usage.base_calls / max(1, usage.base_calls + sum(adapter_calls)),
        **terms,  # type: ignore[arg-type]
    )
    check(workload)
    return workload, tuple(warnings)


def zipf_of(calls: Sequence[int]) -> float:
    """Return the exponent whose Zipf law gives these counts with the greatest likelihood; 0 below two adapters."""
    counts = np.sort(np.asarray(calls, np.float64))[::-1]
    if len(counts) < 2 or counts.sum() <= 0:
        return 0.0
    logs, total = np.log(np.arange(1, len(counts) + 1)), counts.sum()
    exponents = np.linspace(0.0, 5.0, 501)
    likelihood = [-(s * (counts @ logs) + total * np.log(np.exp(-s * logs).sum())) for s in exponents]
    return float(exponents[int(np.argmax(likelihood))])


class TraceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a recorded trace. at: seconds; adapter: any name, None for the base"""

    at: float
    prompt: int
    output: int
    cached: int = 0
    latency_class: str = "interactive"
    adapter: str | None = None


def from_trace(lines: Sequence[TraceLine], promises: Mapping[str, Promise], **terms: float | int) -> Workload:
    """Make a workload of recorded calls: their joint sample, the burstiness of their gaps, their adapters' popularity.

    Raises PlanRefused for fewer than two calls, or calls that all came at one moment.
    """
    times = np.sort(np.array([line.at for line in lines], np.float64))
    if len(times) < 2 or not np.all(np.isfinite(times)) or times[-1] <= times[0]:
        raise PlanRefused(1, "a trace needs at least two calls at different times")
    gaps = np.diff(times)
    by_adapter: dict[str, int] = {}
    for line in lines:
        if line.adapter is not None:
            by_adapter[line.adapter] = by_adapter.get(line.adapter, 0) + 1
    workload = Workload(
        rate=(len(times) - 1) / float(times[-1] - times[0]),
        promises=dict(promises),
        samples=tuple(
            Sample(latency_class=one.latency_class, prompt=one.prompt, cached=one.cached, output=one.output)
            for one in lines
        ),
        cv2=float(np.clip(gaps.var() / gaps.mean() ** 2, 0.05, 100)),
        adapters=len(by_adapter),
        zipf=zipf_of(tuple(by_adapter.values())),
        base_share=sum(line.adapter is None for line in lines) / len(lines),
        **terms,  # type: ignore[arg-type]
    )
    check(workload)
    return workload


def read_trace(path: Path) -> list[TraceLine]:
    """Read one JSON object a line. Raises PlanRefused with the number of a bad line."""
    lines = []
    for number, line in enumerate(read_bytes(path).splitlines(), 1):
        if line.strip():
            try:
                lines.append(msgspec.json.decode(line, type=TraceLine))
            except msgspec.MsgspecError as error:
                raise PlanRefused(1, f"{path}, line {number}: {error}") from error
    return lines
