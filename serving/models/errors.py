"""The refusal of a model."""

from __future__ import annotations


class ModelConfigError(ValueError):
    """A config.json or a checkpoint that this engine does not compute correctly; the message names the field."""
