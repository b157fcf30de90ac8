"""Refusals of this app."""

from __future__ import annotations

from marketplace.accounts.errors import Conflict, Refusal


class NotErasable(Conflict):
    """Something must end first: the message says what."""

    code = "not_erasable"


class ExportTooLarge(Refusal):
    """The copy is larger than a browser should wait for."""

    code = "export_too_large"
    status = 422
