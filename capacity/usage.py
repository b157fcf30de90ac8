"""The usage file of the platform, as `marketplace.operations` writes it: demand, shapes, popularity, money by base."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from capacity.errors import PlanRefused
from capacity.forecast import Demand
from capacity.recorded import Usage, UsageBucket

FORMAT = 1
_LARGEST = 64 << 20


class ClassHours(msgspec.Struct, frozen=True):
    """Calls by hour of one latency class."""

    served: list[int]
    refused: list[int]


class BaseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One base's usage. shapes: class → [prompt, cached, output] tokens; popularity: [calls, rank] of each adapter

    times: class → [output tokens, milliseconds to the first, milliseconds in all] of calls, as receipts have them
    """

    name: str
    classes: dict[str, ClassHours]
    shapes: dict[str, list[tuple[int, int, int]]]
    gap_cv2: dict[str, float]
    times: dict[str, list[tuple[int, int, int]]] = {}
    popularity: list[tuple[int, int]]
    bare_calls: int
    revenue_nano_usd: int


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    start: datetime.datetime
    hours: int
    days_of_revenue: int
    bases: dict[str, BaseUsage]


@dataclass(frozen=True)
class UsageFile:
    """A usage file that was read. digest: SHA-256 of its bytes, so that a plan names what it was made from."""

    start: datetime.datetime
    hours: int
    days_of_revenue: int
    bases: dict[str, BaseUsage]
    digest: str

    def demand(self, fingerprint: str) -> Demand:
        """Return the calls by hour of one base, served and refused. Raises BadHistory for a history without calls."""
        total = np.zeros(self.hours)
        for one in self.bases[fingerprint].classes.values():
            total += np.array(one.served, np.float64) + np.array(one.refused, np.float64)
        return Demand(self.start, total)

    def refused_share(self, fingerprint: str) -> float:
        """Return the share of calls that were refused for want of capacity."""
        classes = self.bases[fingerprint].classes.values()
        refused = sum(sum(one.refused) for one in classes)
        return refused / max(1, refused + sum(sum(one.served) for one in classes))

    def usage(self, fingerprint: str) -> Usage:
        """Return what a workload is made of: the joint sample, weighted by the classes' calls of the whole time."""
        base = self.bases[fingerprint]
        buckets: list[UsageBucket] = []
        for name, shapes in sorted(base.shapes.items()):
            hours = base.classes.get(name)
            calls = sum(hours.served) + sum(hours.refused) if hours else len(shapes)
            for number, (prompt, cached, output) in enumerate(shapes):
                # Whole calls, whose sum is the class's.
                share = calls * (number + 1) // len(shapes) - calls * number // len(shapes)
                buckets.append(
                    UsageBucket(latency_class=name, prompt=prompt, cached=cached, output=output, calls=share)
                )
        refused = sum(sum(one.refused) for one in base.classes.values())
        served = sum(sum(one.served) for one in base.classes.values())
        weights = [base.gap_cv2[name] for name in base.gap_cv2]
        ranks: dict[str, float] = {}
        for _, rank in base.popularity:
            ranks[str(rank)] = ranks.get(str(rank), 0.0) + 1.0
        return Usage(
            seconds=self.hours * 3600.0,
            buckets=tuple(buckets) if served else (),
            calls_by_adapter=tuple(calls for calls, _ in base.popularity),
            base_calls=base.bare_calls,
            ranks=ranks or {"16": 1.0},
            refused=0 if buckets else refused,  # the buckets' calls have them already
            gaps_cv2=max(weights, default=None),
        )


def read_usage(path: Path) -> UsageFile:
    """Read and check a usage file. Raises PlanRefused with what is wrong."""
    try:
        data = path.read_bytes() if path.stat().st_size <= _LARGEST else b""
    except OSError as error:
        raise PlanRefused(1, f"{path}: {error.strerror}") from error
    try:
        found = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise PlanRefused(1, f"{path} is no usage file: {error}") from error
    if found.format != FORMAT:
        raise PlanRefused(1, f"{path}: format {found.format}, this version reads {FORMAT}")
    if found.start.tzinfo is None or not 0 <= found.hours <= 26 * 7 * 24:
        raise PlanRefused(1, f"{path}: its hours start at a time with a zone, and are at most 26 weeks")
    for base in found.bases.values():
        _check(base, found.hours, path)
    return UsageFile(
        found.start, found.hours, found.days_of_revenue, dict(found.bases), hashlib.sha256(data).hexdigest()
    )


def _check(base: BaseUsage, hours: int, path: Path) -> None:
    for name, one in base.classes.items():
        if len(one.served) != hours or len(one.refused) != hours or min([0, *one.served, *one.refused]) < 0:
            raise PlanRefused(1, f"{path}: {base.name}, {name}: a count of {hours} hours each, none below 0")
    for name, shapes in base.shapes.items():
        for prompt, cached, output in shapes:
            if not (0 <= cached < prompt <= 1 << 20 and 1 <= output <= 1 << 20):
                raise PlanRefused(1, f"{path}: {base.name}, {name}: a shape of {prompt}, {cached}, {output} tokens")
    for name, times in base.times.items():
        if any(output < 1 or not 0 <= ttft <= duration < 1 << 40 for output, ttft, duration in times):
            raise PlanRefused(1, f"{path}: {base.name}, {name}: times that cannot be")
    if any(calls < 0 or not 1 <= rank <= 1024 for calls, rank in base.popularity):
        raise PlanRefused(1, f"{path}: {base.name}: an adapter with a count below 0, or a rank that cannot be")
    if any(not 0 <= value < 1e6 for value in base.gap_cv2.values()) or base.revenue_nano_usd < 0:
        raise PlanRefused(1, f"{path}: {base.name}: figures below 0, or absurd ones")
