"""The errors of commands: each says what happened and what to run next, and has an exit code for scripts."""

from __future__ import annotations

from typing import Any


class CliError(Exception):
    """The base class. `message` says what happened, `hint` what to run next; neither ever holds a secret."""

    exit_code = 1
    code = "failed"

    def __init__(
        self, message: str, *, hint: str | None = None, code: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field
        self.code = code or type(self).code

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document that a failed command prints with `--json`."""
        parts = {"code": self.code, "message": self.message, "field": self.field, "hint": self.hint}
        return {"error": {name: value for name, value in parts.items() if value is not None}}


class Refused(CliError):
    """The input broke a rule, here or on the platform."""

    exit_code = 2
    code = "refused"


class NotLoggedIn(CliError):
    """The token is missing, or the platform does not accept it."""

    exit_code = 3
    code = "not_logged_in"


class NetworkError(CliError):
    """The platform cannot be reached, or failed."""

    exit_code = 4
    code = "network"


class Interrupted(CliError):
    """The user pressed Ctrl-C. The message says what is kept."""

    exit_code = 130
    code = "interrupted"


class ApiError(CliError):
    """The platform refused a request, in its envelope. `status` is the HTTP status."""

    def __init__(self, status: int, code: str, message: str, *, field: str | None, offset: int | None = None) -> None:
        super().__init__(message, code=code, field=field)
        self.status = status
        self.offset = offset  # where the platform's upload stands, if not where the client thought
        self.retry_after = 0.0  # seconds
        if code == "scope_missing":
            self.hint = "intarsia login --scope SCOPE, with the scope that is missing"
        if status == 401:
            self.exit_code = NotLoggedIn.exit_code
            self.hint = "intarsia login"
        elif status in (400, 413, 422):
            self.exit_code = Refused.exit_code
        elif status >= 500:
            self.exit_code = NetworkError.exit_code
            self.hint = "try again in a moment"
