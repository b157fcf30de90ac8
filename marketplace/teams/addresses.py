"""Addresses of this app's things on the platform's own origin."""

from __future__ import annotations


def logo_path(digest: str) -> str:
    """Return the path of a logo. Its content never changes: another picture has another digest."""
    return f"/logos/{digest}.webp"
