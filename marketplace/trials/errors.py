"""Refusals of blind comparisons."""

from __future__ import annotations

from marketplace.accounts.errors import Conflict, InvalidInput


class UnknownModel(InvalidInput):
    """A name is no model that the organization can call."""

    code = "unknown_model"


class TooManyTrials(Conflict):
    """The organization has as many comparisons running as it may have."""

    code = "too_many_trials"


class NotToJudge(Conflict):
    """The row was judged, the run has ended, or its rows are compared with expected answers."""

    code = "not_to_judge"
