"""Write the files in vectors/: `python -m tests.sealed_weights.make_vectors`. Only for a new format version.

The vectors pin each format for ever: a change that makes them fail is a new format, not a new vector.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sealed_weights import (
    GENESIS_HASH,
    LeaseGrant,
    PlatformKeypair,
    Reference,
    ReferenceAnswer,
    ReleaseEntry,
    ReplicaKeypair,
    read_contract,
    seal_lease,
    sign_checkpoint,
    source_digest,
    wrap_dek_for_platform,
    wrap_key,
)
from sealed_weights.package import _seal, _seal_rows
from tests.sealed_weights.factories import (
    BASE_FINGERPRINT,
    CREATOR_ID,
    DEK,
    IDENTITY,
    MODEL_ID,
    adapter_tensors,
    write_adapter,
)

VECTORS = Path(__file__).parent / "vectors"
SALT = bytes(range(96, 128))
VAULT_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(128, 160)))


# Not in its canonical form: spaces, defaults left out, keys in another order.
CONTRACT = b"""{"max_tokens": 8, "contract": 1, "instructions": "Answer yes or no. \xc3\xa9",
 "output": {"schema": {"enum": ["yes", "no"]}}, "examples": [{"message": "Is it?", "answer": "\\"yes\\""}]}"""


def seal_vector(
    folder: Path, destination: Path, contract: bytes | None = None, answers: tuple[ReferenceAnswer, ...] = ()
) -> str:
    """Seal the vector's adapter with the fixed salt; the same bytes every time.

    With a contract it is of suite 2, with answers of PEFT of suite 4.
    """
    write_adapter(folder, adapter_tensors(rank=16), r=16)
    if contract is not None:
        (folder / "contract.json").write_bytes(contract)
    if answers:
        reference = Reference(source_digest(folder), "float32", answers)
        (folder / "reference.json").write_bytes(reference.to_bytes())
    sealed = _seal(folder, destination, SALT, DEK, IDENTITY, CREATOR_ID, MODEL_ID, 1, BASE_FINGERPRINT, None, 4096)
    return sealed.digest


def write_contract_vector() -> None:
    """Write the vector of a package with a contract, suite 2."""
    with tempfile.TemporaryDirectory() as folder:
        digest = seal_vector(Path(folder), VECTORS / "package-v1-contract.sealed", CONTRACT)
        contract = read_contract(Path(folder))
    assert contract is not None
    sealed = contract.to_bytes().decode()
    names = {"dek": DEK.hex(), "creator_public": IDENTITY.public_bytes().hex(), "digest": digest, "contract": sealed}
    _write("package-v1-contract", names)


ANSWERS = (ReferenceAnswer((1, 2, 3), (4, 2)), ReferenceAnswer((9,), (7, 7, 2)))


def write_reference_vectors() -> None:
    """Write the vectors of packages with PEFT's answers, suite 4: one with a contract, one without."""
    names = {"dek": DEK.hex(), "creator_public": IDENTITY.public_bytes().hex()}
    for name, contract in (("package-v1-reference", None), ("package-v1-reference-contract", CONTRACT)):
        with tempfile.TemporaryDirectory() as folder:
            digest = seal_vector(Path(folder), VECTORS / f"{name}.sealed", contract, ANSWERS)
        _write(name, names | {"digest": digest})


ROWS = b'{"message": "Is it?", "answer": "yes"}\n' * 200


def seal_rows_vector(destination: Path) -> str:
    """Seal the vector's rows with the fixed salt: two chunks of suite 3."""
    names = (DEK, IDENTITY, CREATOR_ID, MODEL_ID, 1, BASE_FINGERPRINT)
    return _seal_rows(ROWS, destination, SALT, *names, chunk_size=4096).digest


def write_rows_vector() -> None:
    """Write the vector of a set of rows, suite 3."""
    digest = seal_rows_vector(VECTORS / "package-v1-rows.sealed")
    _write("package-v1-rows", {"dek": DEK.hex(), "creator_public": IDENTITY.public_bytes().hex(), "digest": digest})


def main() -> None:
    """Write every vector."""
    write_rows_vector()
    write_contract_vector()
    write_reference_vectors()
    with tempfile.TemporaryDirectory() as folder:
        digest = seal_vector(Path(folder), VECTORS / "package-v1.sealed")
    _write("package-v1", {"dek": DEK.hex(), "creator_public": IDENTITY.public_bytes().hex(), "digest": digest})

    context = {"creator_id": str(CREATOR_ID), "purpose": "vector"}
    kek = bytes(range(160, 192))
    _write(
        "key-wrap-v1",
        {
            "kek": kek.hex(),
            "key": DEK.hex(),
            "context": context,
            "wrapped": wrap_key(kek, DEK, context).hex(),
        },
    )

    platform = PlatformKeypair.generate()
    wrapped = wrap_dek_for_platform(
        DEK, platform.public_bytes(), creator_id=CREATOR_ID, model_id=MODEL_ID, version=1, digest=digest
    )
    _write(
        "platform-wrap-v1",
        {
            "private": platform.private_bytes().hex(),
            "fingerprint": platform.fingerprint(platform.public_bytes()),
            "creator_id": str(CREATOR_ID),
            "model_id": str(MODEL_ID),
            "version": 1,
            "digest": digest,
            "dek": DEK.hex(),
            "wrapped": wrapped.hex(),
        },
    )

    vault_public = VAULT_KEY.public_key().public_bytes_raw().hex()
    replica_private = bytes(range(192, 224))
    replica = ReplicaKeypair.from_private_bytes(replica_private)
    grant = LeaseGrant(UUID(int=1), UUID(int=2), MODEL_ID, 1, digest, 1_800_000_030, bytes(32))
    lease = seal_lease(grant, DEK, replica.public_bytes(), VAULT_KEY)
    _write(
        "lease-v1",
        {
            "replica_private": replica_private.hex(),
            "vault_public": vault_public,
            "dek": DEK.hex(),
            "info": grant.info().hex(),
            "lease": lease.to_json(),
        },
    )

    entry = ReleaseEntry(
        1,
        CREATOR_ID,
        MODEL_ID,
        1,
        digest,
        UUID(int=2),
        replica.fingerprint(),
        "serve",
        1_800_000_000_000_000,
        GENESIS_HASH,
    )
    second = replace(entry, sequence=2, purpose="verify", released_at=1_800_000_010_000_000, previous_hash=entry.hash())
    checkpoint = sign_checkpoint(2, second.hash(), CREATOR_ID, VAULT_KEY, signed_at=1_800_000_020_000_000)
    _write(
        "release-log-v2",
        {
            "vault_public": vault_public,
            "entries": [entry.to_json(), second.to_json()],
            "checkpoint": checkpoint.to_json(),
        },
    )


def _write(name: str, value: dict[str, Any]) -> None:
    (VECTORS / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    main()
