"""Steps that the runner has been given and whose results are not taken yet."""

from __future__ import annotations

from dataclasses import dataclass

from serving.steps import PendingStep, SampledToken, StepPlan


@dataclass(frozen=True, slots=True)
class Launched:
    plan: StepPlan
    step: PendingStep
    began: float


@dataclass(frozen=True, slots=True)
class FailedStep:
    """A `PendingStep` that could not be launched."""

    error: Exception

    def result(self) -> list[SampledToken]:
        raise self.error
