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
