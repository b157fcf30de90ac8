"""Drives a real engine in the calling thread, and times its steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from serving.adapters.gate import LOAD_PAUSE_SECONDS
from serving.core import Request
from serving.engine import Engine
from serving.simulation.work import StepWork, work_of
from serving.steps import PendingStep, StepPlan

_LONGEST_WAIT = 0.002


class SkippingClock:
    """Seconds that jump over idle time.

    own: of this process's processors instead of the wall: the same on a busy machine and on a quiet one, provided that
        the engine computes in one thread
    """

    def __init__(self, *, own: bool) -> None:
        self._read: Callable[[], float] = time.process_time if own else time.perf_counter
        self._skipped = 0.0

    def __call__(self) -> float:
        return self._read() + self._skipped

    def jump(self, until: float) -> None:
        """Go to `until`, if that is later."""
        self._skipped += max(0.0, until - self())


class _Watched:
    """A runner that tells what is launched."""

    def __init__(self, runner: Any, launched: Callable[[StepPlan], None]) -> None:
        self._runner, self._launched = runner, launched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan) -> PendingStep:
        self._launched(plan)
        step: PendingStep = self._runner.launch(plan)
        return step


class Driver:
    """One engine that is not started, warm after `__init__`. on_step: called with each step's work and seconds.

    A step's seconds are those of the whole turn, planning and delivery with it; where steps overlap, those between two
    turns' ends.
    """

    def __init__(self, engine: Engine, clock: SkippingClock, on_step: Callable[[StepWork, float], None]) -> None:
        self.engine, self.clock, self.on_step = engine, clock, on_step
        self.paused = self.computed = 0.0
        self._works: deque[StepWork] = deque()
        engine.warm_up()
        engine.runner = _Watched(engine.runner, self._launched)  # type: ignore[assignment]

    def accept(self, request: Request) -> None:
        """Queue a request."""
        self.engine.accept(request, None)

    @property
    def busy(self) -> bool:
        """Return whether any request is in flight."""
        planner = self.engine.planner
        return bool(planner.running or len(planner.waiting))

    def turn(self) -> bool:
        """Run one turn, as the engine's own thread does. Returns whether a step was computed."""
        engine = self.engine
        began = self.clock()
        with engine.adapters.gate.closed():
            busy = engine.step()
        seconds = self.clock() - began
        if not busy:
            if engine.adapters.loading:
                time.sleep(_LONGEST_WAIT / 4)
            return False
        if len(self._works) > engine.runner.depth or not self.busy:
            self.on_step(self._works.popleft(), seconds)
            self.computed += seconds
        if engine.adapters.gate.load_pause and engine.adapters.loading:
            engine.adapters.gate.let_loads_run(seconds)
            self.paused += min(engine.adapters.gate.load_pause * seconds, LOAD_PAUSE_SECONDS)
        return True

    def finish(self, most: int = 100_000) -> None:
        """Run turns until no request is left. Raises RuntimeError where that takes more than `most`."""
        for _ in range(most):
            if not self.busy:
                return
            self.turn()
        raise RuntimeError("the engine does not come to an end")

    def _launched(self, plan: StepPlan) -> None:
        adapters = self.engine.adapters
        self._works.append(work_of(plan, lambda digest: adapters.cost(digest).rank, loading=adapters.loading))
