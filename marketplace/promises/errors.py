"""Refusals of promises."""

from __future__ import annotations

from marketplace.accounts.errors import Conflict


class NothingToPromise(Conflict):
    """The model has no version for sale whose answers are choices of a schema, and none to promise."""

    code = "no_output_schema"
