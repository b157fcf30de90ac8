"""Refusals of this app: each has a stable `code` for programs, a message for people, and the field it is about."""

from __future__ import annotations


class CatalogError(Exception):
    """Base of every refusal of this app."""

    def __init__(self, code: str, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field


class InvalidInput(CatalogError):
    """A value breaks a rule; `field` names it."""


class Conflict(CatalogError):
    """The request is well-formed but what it is about is in the wrong state, or somebody else has the name."""


class NotAllowed(CatalogError):
    """The caller is known and may not do this."""


class OffsetMismatch(Conflict):
    """A chunk does not start where the upload ends; `offset` (bytes) says where it does."""

    def __init__(self, offset: int) -> None:
        super().__init__("wrong_offset", f"the upload continues at byte {offset}", field="Upload-Offset")
        self.offset = offset


class TooLarge(CatalogError):
    """More bytes than were announced, or than are allowed."""


class StorageUnavailable(CatalogError):
    """The package store cannot take the bytes now; what arrived so far is kept."""


class PackageRefused(CatalogError):
    """The uploaded package is not what it claims to be."""
