"""What can go wrong between a replica and the platform. Messages are safe to show and to log."""

from __future__ import annotations


class PlatformError(Exception):
    """Base of this package's errors; `code` is stable and machine-readable."""

    code = "platform_error"


class TicketRefused(PlatformError):
    """A ticket is missing, forged, expired, meant for another replica, or was used before."""

    code = "invalid_ticket"


class TooManyTickets(PlatformError):
    """The replay memory is full of unexpired tickets; refusing is the only safe answer."""

    code = "overloaded"


class VaultUnreachable(PlatformError):
    """The platform did not answer, or not in time; worth retrying."""

    code = "vault_unreachable"


class SessionRefused(PlatformError):
    """The platform does not know this session (any more): register again."""

    code = "session_refused"


class LeaseRefused(PlatformError):
    """The platform will not release this key; `code` is its reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProtocolViolation(PlatformError):
    """The other side sent something outside docs/protocol.md."""

    code = "protocol_violation"


class JournalUnavailable(PlatformError):
    """The usage journal cannot be written (disk full, I/O error): no new work until it can."""

    code = "journal_unavailable"
