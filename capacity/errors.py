"""Every refusal of a plan."""

from __future__ import annotations


class PlanRefused(Exception):
    """A plan, or one step of it, that cannot be made; the message says what to change.

    step: the number of the step that fails; 0: none in particular
    """

    def __init__(self, step: int, message: str) -> None:
        super().__init__(f"step {step}: {message}" if step else message)
        self.step = step
        self._message = message

    def __reduce__(self) -> tuple[type[PlanRefused], tuple[int, str]]:
        """Let a refusal pass between processes."""
        return type(self), (self.step, self._message)
