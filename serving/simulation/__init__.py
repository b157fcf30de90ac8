"""One replica in simulated time: the planner, the block pool and the eviction order that production runs, on a clock
that is a number. Tests draw random traces on it, `capacity` its curves. Imports no torch."""

from serving.simulation.replica import Script, SimulatedReplica
from serving.simulation.residency import SimulatedResidency

__all__ = ["Script", "SimulatedReplica", "SimulatedResidency"]
