"""Encryption of rows and answers at rest, with the key of the organization that kept answers have (docs/replays.md)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from marketplace.accounts.models import Organization
from marketplace.trials.models import TrialRow
from marketplace.trials.rows import Row, pack, unpack
from marketplace.vault.answer_keys import AnswerCipher
from marketplace.vault.ciphers import cipher_of


def seal_row(cipher: AnswerCipher, row_id: UUID, row: Row) -> bytes:
    """Return an encrypted row; it opens for its own id alone."""
    return cipher.seal(row_id, pack(row))


def open_row(cipher: AnswerCipher, row: TrialRow) -> Row:
    """Return what was uploaded. Raises AuthenticationError, and ValueError for a row that was deleted."""
    if row.sealed is None:
        raise ValueError("the row was deleted")
    return unpack(cipher.open(row.pk, bytes(row.sealed)))


def seal_answers(cipher: AnswerCipher, row_id: UUID, a: str, b: str) -> bytes:
    """Return the encrypted answers of both sides."""
    return cipher.seal(row_id, orjson.dumps([a, b]))


def open_answers(cipher: AnswerCipher, row: TrialRow) -> tuple[str, str]:
    """Return the answers of A and B. Raises ValueError for a row that has none any more."""
    if row.answers is None:
        raise ValueError("the answers were deleted")
    a, b = orjson.loads(cipher.open(row.pk, bytes(row.answers)))
    return a, b


def read_sealed(organization: Organization, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table with its text in the clear, for the organization's own copy of its data."""
    cipher, found = cipher_of(organization.pk), dict(row)
    sealed, answers = found.pop("sealed"), found.pop("answers")
    if sealed is not None:
        text = unpack(cipher.open(row["id"], bytes(sealed)))
        found |= {"message": text.message, "expected": text.expected}
    if answers is not None:
        found["answers"] = orjson.loads(cipher.open(row["id"], bytes(answers)))
    return found
