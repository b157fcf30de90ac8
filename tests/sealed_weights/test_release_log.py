"""The release log: the first broken row is named, and nothing before a signed checkpoint can be lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealed_weights import (
    GENESIS_HASH,
    AuthenticationError,
    FormatError,
    ReleaseEntry,
    SignatureError,
    SignedCheckpoint,
    sign_checkpoint,
    verify_chain,
)

VAULT = Ed25519PrivateKey.generate()
PUBLIC = VAULT.public_key().public_bytes_raw()
CREATOR = uuid4()
SIGNED_AT = 1_800_000_100_000_000


def chain(length: int = 5) -> list[ReleaseEntry]:
    entries: list[ReleaseEntry] = []
    previous = GENESIS_HASH
    for sequence in range(1, length + 1):
        entry = ReleaseEntry(
            sequence, CREATOR, uuid4(), 1, "ab" * 32, uuid4(), "cd" * 32, "serve", 1_800_000_000_000_000, previous
        )
        entries.append(entry)
        previous = entry.hash()
    return entries


def checkpoint_at(entries: list[ReleaseEntry], sequence: int) -> SignedCheckpoint:
    return sign_checkpoint(sequence, entries[sequence - 1].hash(), CREATOR, VAULT, signed_at=SIGNED_AT)


@pytest.mark.parametrize("sequence", [1, 3, 5])
def test_a_whole_chain_verifies_with_a_checkpoint_anywhere(sequence: int) -> None:
    entries = chain()
    verify_chain(entries, checkpoint=checkpoint_at(entries, sequence), vault_public=PUBLIC)
    verify_chain(iter(entries), checkpoint=None, vault_public=PUBLIC)


def test_an_empty_chain_verifies_unless_a_checkpoint_says_otherwise() -> None:
    verify_chain([], checkpoint=None, vault_public=PUBLIC)
    with pytest.raises(AuthenticationError, match="release 1: is missing"):
        verify_chain([], checkpoint=checkpoint_at(chain(), 3), vault_public=PUBLIC)


@pytest.mark.parametrize(
    "change",
    [
        {"model_id": uuid4()},
        {"version": 2},
        {"digest": "00" * 32},
        {"replica_id": uuid4()},
        {"replica_key_fingerprint": "00" * 32},
        {"purpose": "verify"},
        {"released_at": 1},
    ],
)
def test_a_changed_row_breaks_the_row_after_it(change: dict[str, Any]) -> None:
    entries = chain()
    entries[2] = replace(entries[2], **change)
    with pytest.raises(AuthenticationError, match="release 4: previous_hash"):
        verify_chain(entries, checkpoint=None, vault_public=PUBLIC)


def test_a_changed_last_row_is_caught_by_the_checkpoint() -> None:
    entries = chain()
    checkpoint = checkpoint_at(entries, 5)
    entries[4] = replace(entries[4], purpose="other")
    with pytest.raises(AuthenticationError, match="release 5: its hash"):
        verify_chain(entries, checkpoint=checkpoint, vault_public=PUBLIC)


def test_a_chain_rewritten_from_the_start_is_caught_by_the_checkpoint() -> None:
    checkpoint = checkpoint_at(chain(), 3)
    with pytest.raises(AuthenticationError, match="release 3: its hash"):
        verify_chain(chain(), checkpoint=checkpoint, vault_public=PUBLIC)


def test_dropped_inserted_swapped_and_repeated_rows_are_named() -> None:
    a, b, c, d, e = chain()
    for rows, broken in (([a, b, d, e], 3), ([b, c], 1), ([a, c, b], 2), ([a, b, b, c], 3)):
        with pytest.raises(AuthenticationError, match=f"release {broken}: is missing"):
            verify_chain(rows, checkpoint=None, vault_public=PUBLIC)


def test_a_truncated_chain_is_caught_by_the_checkpoint() -> None:
    entries = chain()
    with pytest.raises(AuthenticationError, match="release 4: is missing"):
        verify_chain(entries[:3], checkpoint=checkpoint_at(entries, 5), vault_public=PUBLIC)


def test_rows_or_checkpoints_of_another_creator_are_refused() -> None:
    entries = chain()
    other = sign_checkpoint(5, entries[4].hash(), uuid4(), VAULT, signed_at=SIGNED_AT)
    with pytest.raises(AuthenticationError, match="release 1: creator_id"):
        verify_chain(entries, checkpoint=other, vault_public=PUBLIC)
    entries[1] = replace(entries[1], creator_id=uuid4())
    with pytest.raises(AuthenticationError, match="release 2: creator_id"):
        verify_chain(entries, checkpoint=None, vault_public=PUBLIC)


def test_a_checkpoint_that_the_vault_did_not_sign_is_refused() -> None:
    entries = chain()
    good = checkpoint_at(entries, 5)
    forgeries = [
        replace(good, sequence=4),
        replace(good, head_hash=bytes(32)),
        replace(good, creator_id=uuid4()),
        replace(good, signed_at=SIGNED_AT + 1),
        replace(good, signature=bytes(64)),
        sign_checkpoint(5, entries[4].hash(), CREATOR, Ed25519PrivateKey.generate(), signed_at=SIGNED_AT),
    ]
    for forged in forgeries:
        with pytest.raises(SignatureError, match="checkpoint"):
            verify_chain(entries, checkpoint=forged, vault_public=PUBLIC)


def test_a_checkpoint_of_no_row_is_refused_even_if_it_is_signed() -> None:
    empty = sign_checkpoint(0, bytes(32), CREATOR, VAULT, signed_at=SIGNED_AT)
    with pytest.raises(AuthenticationError, match="proves nothing"):
        verify_chain([], checkpoint=empty, vault_public=PUBLIC)


def test_rows_and_checkpoints_survive_json() -> None:
    entries = chain()
    checkpoint = checkpoint_at(entries, 5)
    assert [ReleaseEntry.from_json(entry.to_json()) for entry in entries] == entries
    assert SignedCheckpoint.from_json(checkpoint.to_json()) == checkpoint
    with pytest.raises(FormatError, match="exactly the fields"):
        ReleaseEntry.from_json(entries[0].to_json() | {"note": "x"})
