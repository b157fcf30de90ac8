"""Metadata that callers attach to their own things, within OpenAI's limits: short texts by short names."""

from __future__ import annotations

from marketplace.accounts.errors import InvalidInput

MOST = 16
MAX_KEY = 64  # characters
MAX_VALUE = 512


def parse_metadata(value: object) -> dict[str, str]:
    """Return the metadata of a request body; None is none. Raises InvalidInput."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MOST:
        raise InvalidInput(f"`metadata` must be an object with at most {MOST} members.", field="metadata")
    for key, text in value.items():
        if not 1 <= len(key) <= MAX_KEY or not isinstance(text, str) or len(text) > MAX_VALUE or "\0" in key + text:
            message = f"`metadata` has names of at most {MAX_KEY} characters and texts of at most {MAX_VALUE}."
            raise InvalidInput(message, field="metadata")
    return value
