"""Every way in which a request can be refused or fail, and the error of a bad flag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.shares import Full, Late


class ConfigError(ValueError):
    """A flag has an impossible value; the message names it."""


class EngineError(Exception):
    """A request was refused or failed. `code` is stable and machine-readable; the message is safe to show to a
    client."""

    code = "engine_error"


class QueueFull(EngineError):
    """Admission refused; try again after `retry_after` seconds. code: queue_full, tenant_queue_full, or
    deadline_unmeetable."""

    code = "queue_full"

    def __init__(self, message: str, retry_after: float, code: str = code) -> None:
        super().__init__(message)
        self.retry_after, self.code = retry_after, code


class PromptTooLong(EngineError):
    """Prompt plus requested output exceed the context length."""

    code = "context_length_exceeded"


class BeamsTooWide(EngineError):
    """A beam search needs more rows of a step, or more KV, than there are."""

    code = "beams_too_wide"


class AdapterUnavailable(EngineError):
    """The adapter could not be loaded (missing, malformed, or larger than the whole pool)."""

    code = "adapter_unavailable"


class AdapterRevoked(EngineError):
    """The adapter was revoked: new requests are refused and running ones are aborted."""

    code = "adapter_revoked"


class NonFiniteOutput(EngineError):
    """The adapter drove the logits to NaN or infinity. Only its own requests fail."""

    code = "non_finite_output"


class DeadlineExceeded(EngineError):
    """The request's deadline passed before it finished."""

    code = "deadline_exceeded"


class ConstraintFailed(EngineError):
    """The grammar that bounds the output met one of its limits while generating. Only its own request fails."""

    code = "constraint_failed"


class StepFailed(EngineError):
    """The forward pass this request was part of raised."""

    code = "internal_error"


class EngineStopped(EngineError):
    """The engine is shutting down or not started."""

    code = "engine_stopped"


@contextmanager
def refusing(work: str) -> Iterator[None]:
    """Raise QueueFull where a pool that tenants share has no place for `work`, DeadlineExceeded where it is Late."""
    try:
        yield
    except Full as full:
        code = "tenant_queue_full" if full.own else "queue_full"
        raise QueueFull(f"too many requests wait for {work}", 1.0, code) from None
    except Late:
        raise DeadlineExceeded(f"{work} took too long") from None
