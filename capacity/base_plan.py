"""One base's part of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from capacity.forecast import Forecast
from capacity.kinds import Kind
from capacity.results import CurvePoint, Step
from capacity.workload import Workload


@dataclass(frozen=True)
class BasePlan:
    """One base's part. kinds: by accelerator; refused: accelerator → why it does not serve

    curve, trap: of the kind that bears most of it; replicas: in the busiest level, of all kinds
    """

    base: str
    name: str
    workload: Workload
    demand: Forecast
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    kind: Kind | None = None
    replicas: int = 0
    curve: tuple[CurvePoint, ...] = ()
    trap: tuple[tuple[float, float, float, float], ...] = ()
    steps: tuple[Step, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def chosen(self) -> Kind:
        """Return the kind that bears most of the base, once there is a fleet."""
        assert self.kind is not None, "a fleet chooses it"
        return self.kind
