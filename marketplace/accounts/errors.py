"""Refusals of this app: each has a stable `code` for programs, a message for people, and the field it is about."""

from __future__ import annotations


class AccountsError(Exception):
    """Base of every refusal of this app."""

    def __init__(self, code: str, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


class InvalidInput(AccountsError):
    """A value breaks a rule; `field` names it."""


class Conflict(AccountsError):
    """The value is fine but somebody already has it."""


class NotAllowed(AccountsError):
    """The caller is known and may not do this."""


class InvalidCredentials(AccountsError):
    """E-mail and password, or an API key, that prove nobody."""
