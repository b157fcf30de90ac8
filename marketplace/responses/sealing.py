"""Kept responses in the clear, for their organization's own copy of its data."""

from __future__ import annotations

from typing import Any

from marketplace.accounts.models import Organization
from marketplace.responses.packing import unseal
from marketplace.vault.ciphers import cipher_of


def read_sealed(organization: Organization, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table with what was said in it."""
    found = dict(row)
    return found | unseal(cipher_of(organization.pk), row["id"], bytes(found.pop("sealed")))
