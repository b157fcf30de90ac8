"""Refusals of this app, beside the general ones of `accounts.errors`."""

from __future__ import annotations

from marketplace.accounts.errors import Conflict, Refusal


class OffsetMismatch(Conflict):
    """A chunk does not start where the upload ends; `offset` (bytes) and the header `Upload-Offset` say where."""

    code = "wrong_offset"

    def __init__(self, offset: int) -> None:
        """Name the right offset."""
        super().__init__(
            f"the upload continues at byte {offset}", field="Upload-Offset", headers={"Upload-Offset": str(offset)}
        )
        self.offset = offset


class PackageRefused(Refusal):
    """The uploaded package is not what it claims to be."""

    code = "package_refused"
    status = 422


class StorageUnavailable(Refusal):
    """The package store cannot take the bytes now; what arrived so far is kept."""

    code = "storage_unavailable"
    status = 507
