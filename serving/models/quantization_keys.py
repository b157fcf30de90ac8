"""Checks of single keys of a `quantization_config`; each refusal names the key and the rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from serving.models.errors import ModelConfigError

KEY = "quantization_config"


class QuantizationError(ModelConfigError):
    """A quantisation that is not computed here; the message names the key and the rule."""


def ignores(ignored: tuple[str, ...], module: str) -> bool:
    """Return whether a list of modules that are not quantised has this one.

    An entry is a name, the end or the beginning of one, or "re:" and a pattern.
    """
    dotted = f".{module}."
    return any(
        re.match(entry[3:], module) is not None if entry.startswith("re:") else f".{entry}." in dotted
        for entry in ignored
    )


def require(found: Mapping[str, Any], key: str, *allowed: object, within: str = KEY) -> None:
    """Raise QuantizationError unless the key has one of the allowed values."""
    value = found.get(key)
    if value not in allowed or (isinstance(value, bool) and not any(value is one for one in allowed)):
        choices = ", ".join(repr(one) for one in allowed if one is not None) or "null"
        raise QuantizationError(f"{within}.{key} {value!r}: only {choices} is served")


def refuse(found: Mapping[str, Any], key: str) -> None:
    """Raise QuantizationError for a key that is set."""
    if found.get(key):
        raise QuantizationError(f"{KEY}.{key} is not served")


def names(entries: Any) -> tuple[str, ...]:
    """Return a list of modules. Raises QuantizationError for anything but names and patterns."""
    if isinstance(entries, str) or not all(isinstance(entry, str) for entry in entries):
        raise QuantizationError(f"{KEY}: the list of modules that are not quantised holds {entries!r}")
    for entry in entries:
        if entry.startswith("re:"):
            try:
                re.compile(entry[3:])
            except re.error as error:
                raise QuantizationError(f"{KEY}: {entry!r} is no pattern: {error}") from error
    return tuple(entries)
