"""Faults of a message. Each side turns these into its own refusals; the texts are safe to show and to log."""

from __future__ import annotations


class ProtocolError(ValueError):
    """A message is not what docs/protocol.md says."""


class VersionMismatch(ProtocolError):
    """The other side speaks another version of the protocol."""


class BodyTooLarge(ProtocolError):
    """A body is longer than its limit; `limit` is in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body may have at most {limit} bytes")
        self.limit = limit


class BodyTooSlow(ProtocolError):
    """A body did not arrive in its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the body did not arrive within {seconds:.0f} s")
        self.seconds = seconds


class UnknownEncoding(ProtocolError):
    """A body is compressed in a way that is not read here."""


class BrokenEncoding(ProtocolError):
    """A body is not what its Content-Encoding says."""


class ClientGone(Exception):
    """The client hung up before its request was complete."""


class RequestRefused(ProtocolError):
    """A request's body alone makes it impossible: 400 on either side.

    message: a sentence for the caller; code: stable and machine-readable; param: the body's field at fault
    """

    status = 400

    def __init__(self, message: str, *, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.param = message, code, param


def require(holds: bool, param: str, rule: str) -> None:
    """Raise RequestRefused "'param' rule." unless the rule holds."""
    if not holds:
        raise RequestRefused(f"'{param}' {rule}.", param=param)
