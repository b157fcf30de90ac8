"""Errors between a replica and the platform. Messages are safe to show and to log."""

from __future__ import annotations


class PlatformError(Exception):
    """Base of this package's errors; `code` is stable and machine-readable."""

    code = "platform_error"


class TicketRefused(PlatformError):
    """A ticket that is missing, forged, expired, meant for another replica, or used before."""

    code = "invalid_ticket"


class TooManyTickets(PlatformError):
    """A replay memory full of unexpired tickets; refusing is the only safe answer."""

    code = "overloaded"


class VaultUnreachable(PlatformError):
    """A platform that did not answer in time; worth retrying."""

    code = "vault_unreachable"


class SessionRefused(PlatformError):
    """A session that the platform does not know (any more): register again."""

    code = "session_refused"


class LeaseRefused(PlatformError):
    """The platform's refusal to release a key; `code` is its reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProtocolViolation(PlatformError):
    """A message from the other side that violates docs/protocol.md."""

    code = "protocol_violation"


class JournalUnavailable(PlatformError):
    """A usage journal that cannot be written (disk full, I/O error): no new work until it can be."""

    code = "journal_unavailable"


class VerificationFailed(PlatformError):
    """A verification that could not be carried out. It is no verdict on the adapter and is worth retrying."""

    code = "verification_failed"


class PullFailed(PlatformError):
    """KV that could not be pulled from another replica: it is computed here. `code` is the metric's label."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
