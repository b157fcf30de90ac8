"""Failures of making a plan."""

from __future__ import annotations


class NotMade(Exception):
    """A plan was not made; the message says why, and is shown to staff."""
