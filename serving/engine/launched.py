"""Steps that were given to the runner and whose results have not been taken yet."""

from __future__ import annotations

from dataclasses import dataclass

from serving.steps import PendingStep, SampledToken, StepPlan


@dataclass(frozen=True, slots=True)
class Launched:
    """A step in flight.

    began: when it was launched, in seconds of the engine's clock
    """

    plan: StepPlan
    step: PendingStep
    began: float


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A `PendingStep` that could not be launched."""

    error: Exception

    def result(self) -> list[SampledToken]:
        raise self.error
