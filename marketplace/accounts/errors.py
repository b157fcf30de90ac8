"""Refusals: what the platform answers when it does not do what was asked.

The base class stands here because `accounts` is the one app that every other app, `billing` too, may import. The other
apps' `errors.py` add what only they refuse; `api`, `gateway` and `web` each render refusals in one place.
"""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):
    """Base of every refusal.

    `code` is stable and for programs, `message` is for people, `status` is the HTTP status, `field` names the part of
    the request at fault, and `headers` are HTTP response headers that belong to the refusal. A subclass sets `code` and
    `status` for its kind; an argument sets them for one refusal. Status 500 marks a fault of the platform: its message
    is logged and never shown. `told`: the caller has it already, as the end of a stream.
    """

    code: str = "invalid"
    status: int = 400
    told: bool = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.headers = dict(headers or {})
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class InvalidInput(Refusal):
    """A value breaks a rule; `field` names it."""


class InvalidCredentials(Refusal):
    """E-mail and password, or an API key, do not prove who is calling."""

    code = "invalid_credentials"
    status = 401


class NotAllowed(Refusal):
    """The caller is known and may not do this."""

    code = "forbidden"
    status = 403


class NotFound(Refusal):
    """There is no such thing, or it is not the caller's: the two cannot be told apart."""

    code = "not_found"
    status = 404


class Conflict(Refusal):
    """The request is well-formed, but its subject is in the wrong state or its name is taken."""

    code = "conflict"
    status = 409


class TooLarge(Refusal):
    """More bytes than were announced, or than are allowed."""

    code = "too_large"
    status = 413
