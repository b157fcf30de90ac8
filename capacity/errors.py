"""Refusals of planning: each says what is wrong with an input, and which step cannot be done."""

from __future__ import annotations


class PlanningError(Exception):
    """A plan, or a part of it, cannot be made from these inputs."""


class BadHistory(PlanningError):
    """A history of demand is empty or has figures that cannot be."""


class BadCatalogue(PlanningError):
    """A catalogue or a list of prices has figures that cannot be, or cannot be compared."""


class CannotServe(PlanningError):
    """No fleet serves this demand with what may be had; the message says which limit, and by how much."""
