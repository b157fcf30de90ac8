"""The texts of calls at rest: a line's request with its `custom_id`, and what came of it."""

from __future__ import annotations

from typing import Any

import orjson

from marketplace.accounts.models import Organization
from marketplace.jobs.content import open_chunk
from marketplace.jobs.models import BatchLine, FileChunk
from marketplace.vault.answer_keys import AnswerCipher
from marketplace.vault.ciphers import cipher_of


def pack_request(custom_id: str, body: bytes) -> bytes:
    """Return a line's request as it is sealed; its body is sent byte for byte, so that a retry is the same."""
    return orjson.dumps([custom_id, body.decode()])


def open_request(cipher: AnswerCipher, line: BatchLine) -> tuple[str, bytes]:
    """Return `custom_id` and body of a line that has not ended."""
    custom_id, body = orjson.loads(cipher.open(line.pk, bytes(line.request or b"")))
    return custom_id, body.encode()


def read_call_row(organization: Organization, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of calls with its texts in the clear, for the organization's own copy of its data."""
    cipher, found = cipher_of(organization.pk), dict(row)
    for name in ("request", "outcome"):
        sealed = found.pop(name)
        if sealed is not None:
            found[name] = orjson.loads(cipher.open(row["id"], bytes(sealed)))
    return found


def read_chunk_row(organization: Organization, row: dict[str, Any]) -> dict[str, Any]:
    """Return a chunk with its lines in the clear, for the organization's own copy of its data."""
    found = dict(row)
    chunk = FileChunk(pk=row["id"], sealed=found.pop("sealed"))
    return found | {"content": open_chunk(cipher_of(organization.pk), chunk).decode()}
