"""Keys on their way: from the creator to the platform, from the vault to a replica."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealed_weights import (
    AuthenticationError,
    FormatError,
    LeaseGrant,
    PlatformKeypair,
    ReplicaKeypair,
    SealedLease,
    SignatureError,
    fingerprint,
    open_lease,
    seal_lease,
    unwrap_dek_from_creator,
    wrap_dek_for_platform,
)

DEK = bytes(range(32))
BINDING: dict[str, Any] = {"creator_id": uuid4(), "model_id": uuid4(), "version": 3, "digest": "ab" * 32}
VAULT = Ed25519PrivateKey.generate()
GRANT = LeaseGrant(uuid4(), uuid4(), uuid4(), 3, "ab" * 32, 1_800_000_000, b"e" * 32)


def test_a_platform_wrap_opens_with_the_platform_key_reloaded_from_bytes() -> None:
    keypair = PlatformKeypair.generate()
    wrapped = wrap_dek_for_platform(DEK, keypair.public_bytes(), **BINDING)
    reloaded = PlatformKeypair.from_private_bytes(keypair.private_bytes())
    assert unwrap_dek_from_creator(wrapped, reloaded, **BINDING) == DEK
    assert len(wrapped) == 1168


@pytest.mark.parametrize(
    "change", [{"creator_id": uuid4()}, {"model_id": uuid4()}, {"version": 4}, {"digest": "ac" * 32}]
)
def test_a_platform_wrap_does_not_open_for_another_package(change: dict[str, Any]) -> None:
    keypair = PlatformKeypair.generate()
    wrapped = wrap_dek_for_platform(DEK, keypair.public_bytes(), **BINDING)
    with pytest.raises(AuthenticationError):
        unwrap_dek_from_creator(wrapped, keypair, **(BINDING | change))


def test_a_changed_cut_or_misdirected_platform_wrap_is_refused() -> None:
    keypair = PlatformKeypair.generate()
    wrapped = wrap_dek_for_platform(DEK, keypair.public_bytes(), **BINDING)
    bad = [wrapped[:size] for size in (0, 1, 100, 1120, 1167)] + [wrapped + b"\0"]
    for offset in range(0, len(wrapped), 13):
        bad.append(wrapped[:offset] + bytes([wrapped[offset] ^ 1]) + wrapped[offset + 1 :])
    for candidate in bad:
        with pytest.raises(AuthenticationError):
            unwrap_dek_from_creator(candidate, keypair, **BINDING)
    with pytest.raises(AuthenticationError):
        unwrap_dek_from_creator(wrapped, PlatformKeypair.generate(), **BINDING)


def test_platform_keys_of_another_size_are_refused() -> None:
    with pytest.raises(FormatError, match="public key"):
        wrap_dek_for_platform(DEK, b"p" * 32, **BINDING)
    with pytest.raises(FormatError, match="public key"):
        wrap_dek_for_platform(DEK, b"\xff" * 1216, **BINDING)
    with pytest.raises(FormatError, match="private key"):
        PlatformKeypair.from_private_bytes(b"p" * 95)
    with pytest.raises(FormatError, match="dek"):
        wrap_dek_for_platform(b"short", PlatformKeypair.generate().public_bytes(), **BINDING)


def test_a_fingerprint_names_one_key() -> None:
    public = PlatformKeypair.generate().public_bytes()
    assert fingerprint(public) == PlatformKeypair.fingerprint(public)
    assert fingerprint(public) != fingerprint(PlatformKeypair.generate().public_bytes())
    assert len(fingerprint(public)) == 64


@pytest.mark.parametrize("as_text", [False, True])
def test_a_lease_survives_json_and_opens_for_its_replica(as_text: bool) -> None:
    replica = ReplicaKeypair.generate()
    sealed = seal_lease(GRANT, DEK, replica.public_bytes(), VAULT)
    carried = json.dumps(sealed.to_json())
    received = SealedLease.from_json(carried if as_text else json.loads(carried))
    assert received == sealed
    dek = open_lease(received, replica, VAULT.public_key().public_bytes_raw())
    assert isinstance(dek, bytearray) and dek == DEK


@pytest.mark.parametrize(
    "change",
    [
        {"release_id": uuid4()},
        {"replica_id": uuid4()},
        {"model_id": uuid4()},
        {"version": 4},
        {"digest": "ac" * 32},
        {"expires_at": 1_900_000_000},
        {"evidence_hash": b"f" * 32},
    ],
)
def test_no_field_of_a_grant_can_be_changed_by_anyone_even_the_signer(change: dict[str, Any]) -> None:
    replica = ReplicaKeypair.generate()
    sealed = seal_lease(GRANT, DEK, replica.public_bytes(), VAULT)
    forged = replace(sealed, grant=replace(GRANT, **change))
    with pytest.raises(SignatureError):
        open_lease(forged, replica, VAULT.public_key())
    other = seal_lease(replace(GRANT, **change), DEK, replica.public_bytes(), VAULT)
    spliced = replace(other, ciphertext=sealed.ciphertext)
    with pytest.raises(SignatureError):
        open_lease(spliced, replica, VAULT.public_key())


def test_the_signature_is_checked_before_anything_is_decrypted() -> None:
    sealed = seal_lease(GRANT, DEK, ReplicaKeypair.generate().public_bytes(), VAULT)
    # For the wrong replica too: a forged lease is refused by its signature, never by decryption.
    with pytest.raises(SignatureError):
        open_lease(replace(sealed, ciphertext=b"junk"), ReplicaKeypair.generate(), VAULT.public_key())


def test_a_lease_of_another_vault_or_for_another_replica_is_refused() -> None:
    replica = ReplicaKeypair.generate()
    sealed = seal_lease(GRANT, DEK, replica.public_bytes(), VAULT)
    with pytest.raises(SignatureError):
        open_lease(sealed, replica, Ed25519PrivateKey.generate().public_key())
    with pytest.raises(AuthenticationError):
        open_lease(sealed, ReplicaKeypair.generate(), VAULT.public_key())


def test_useless_replica_keys_are_refused() -> None:
    for public in (b"", b"p" * 31, bytes(32)):
        with pytest.raises(FormatError, match="replica key"):
            seal_lease(GRANT, DEK, public, VAULT)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": -1}, "version"),
        ({"version": True}, "version"),
        ({"release_id": "x"}, "release_id"),
        ({"ciphertext": "not base64!"}, "ciphertext"),
        ({"digest": 7}, "digest"),
        ({"extra": 1}, "exactly the fields"),
    ],
)
def test_a_malformed_lease_is_refused_by_field(change: dict[str, Any], field: str) -> None:
    good = seal_lease(GRANT, DEK, ReplicaKeypair.generate().public_bytes(), VAULT).to_json()
    with pytest.raises(FormatError, match=field):
        SealedLease.from_json(good | change)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"version":1,"version":1}', "[" * 100_000])
def test_text_that_is_not_a_lease_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        SealedLease.from_json(text)


def test_secrets_do_not_show_in_representations() -> None:
    keypair = PlatformKeypair.generate()
    replica = ReplicaKeypair.generate()
    sealed = seal_lease(GRANT, DEK, replica.public_bytes(), VAULT)
    for value in (keypair, replica, sealed):
        assert DEK.hex() not in repr(value) and str(DEK) not in repr(value)
    assert str(keypair.private_bytes()) not in repr(keypair)
