"""Refusals of promises."""

from __future__ import annotations

from marketplace.accounts.errors import Conflict


class NothingToPromise(Conflict):
    """The model has no version for sale whose answers follow a schema, so no share of valid ones can be measured."""

    code = "no_output_schema"
