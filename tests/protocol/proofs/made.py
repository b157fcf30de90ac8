"""A platform's keys and a receipt document, as the platform would make them, without the platform."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import encode_base64url
from protocol.proofs.charges import Charge, ChargePrice, Correction, DayHead, Share
from protocol.proofs.documents import DOCUMENT_FORMAT, Inclusion, ReceiptDocument
from protocol.proofs.keys import KEYS_FORMAT, KeyFile, PublishedKey, endorse
from protocol.proofs.merkle import inclusion_path, leaf_hash, range_hash_of, root_of
from protocol.proofs.signed import sign_statement
from protocol.receipts import Receipt, sign_receipt

NOW = 1_764_000_000  # unix seconds
OLD, NEW = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2))
OLD_ID, NEW_ID = (str(uuid.UUID(int=number)) for number in (1, 2))
REPLICA = Ed25519PrivateKey.from_private_bytes(bytes([3]) * 32)
REPLICA_ID, PREDICTION, BUYER, SELLER, UPSTREAM, MODEL = (str(uuid.UUID(int=number)) for number in range(3, 9))
ADAPTER, BASE = "cd" * 32, "ab" * 32


def public(private: Ed25519PrivateKey) -> str:
    return encode_base64url(private.public_key().public_bytes_raw())


def key_file(*, rotated: bool = False, **changes: Any) -> KeyFile:
    """The first key alone, or with its successor from `NOW` on."""
    first = PublishedKey(
        kid=OLD_ID,
        public_key=public(OLD),
        valid_from=NOW - 1_000,
        valid_until=NOW if rotated else None,
        endorsed_by=None,
        endorsement=None,
    )
    keys = [first]
    if rotated:
        signature = endorse(OLD, kid=NEW_ID, public_key=NEW.public_key().public_bytes_raw(), valid_from=NOW)
        second = PublishedKey(
            kid=NEW_ID,
            public_key=public(NEW),
            valid_from=NOW,
            valid_until=None,
            endorsed_by=OLD_ID,
            endorsement=encode_base64url(signature),
        )
        keys.append(second)
    fields = {"format": KEYS_FORMAT, "platform": "https://intarsia.example", "published_at": NOW, "keys": tuple(keys)}
    return KeyFile(**(fields | changes))


def replica_receipt(**changes: Any) -> str:
    fields: dict[str, Any] = {
        "jti": PREDICTION,
        "attempt": 2,
        "replica_id": REPLICA_ID,
        "iat": NOW,
        "adapter": ADAPTER,
        "base": BASE,
        "prompt_tokens": 100,
        "cached_tokens": 20,
        "completion_tokens": 60,
        "finish_reason": "stop",
        "ttft_ms": 10,
        "duration_ms": 90,
        "latency_class": "batch",
    }
    return sign_receipt(Receipt(**(fields | changes)), REPLICA, signer_id=REPLICA_ID)


def charge(**changes: Any) -> Charge:
    """50 of 60 tokens delivered: 80·150,000 + 20·75,000 + 50·600,000 pico-dollars, at half the list price."""
    fields: dict[str, Any] = {
        "version": 1,
        "prediction_id": PREDICTION,
        "attempt": 2,
        "organization_id": BUYER,
        "model": "acme/triage",
        "model_id": MODEL,
        "model_version_id": None,
        "request_sha256": encode_base64url(bytes(32)),
        "placed_at": NOW * 10**6,
        "charged_at": NOW * 10**6 + 90_000,
        "latency_class": "batch",
        "class_bps": 5_000,
        "price": ChargePrice(
            input_micro_usd_per_mtok=150_000,
            cached_input_micro_usd_per_mtok=75_000,
            output_micro_usd_per_mtok=600_000,
            per_prediction_nano_usd=1,
        ),
        "prompt_tokens": 100,
        "cached_tokens": 20,
        "completion_tokens": 50,
        "gross_nano_usd": 21_751,
        "allowance_nano_usd": 1_752,
        "held_nano_usd": 50_000,
        "cost_nano_usd": 19_999,
        "split": (
            Share(payee=SELLER, basis_points=7_777, reason="creator", nano_usd=15_553),
            Share(payee=UPSTREAM, basis_points=223, reason="upstream", nano_usd=446),
            Share(payee=None, basis_points=2_000, reason="platform", nano_usd=4_000),
        ),
        "replica_id": REPLICA_ID,
        "adapter": ADAPTER,
        "base": BASE,
        "max_prompt_tokens": 100,
        "max_completion_tokens": 64,
        "signer_id": REPLICA_ID,
        "signer_key": public(REPLICA),
        "replica_receipt": replica_receipt(),
    }
    return Charge(**(fields | changes))


def signed(statement: Charge | Correction | DayHead, private: Ed25519PrivateKey = OLD, kid: str = OLD_ID) -> str:
    """The statement, signed a second before `NOW`."""
    kinds = {Charge: "intarsia-charge", Correction: "intarsia-correction", DayHead: "intarsia-day"}
    typ: Any = kinds[type(statement)]
    return sign_statement(msgspec.json.encode(statement), private, kid=kid, typ=typ, signed_at=NOW - 1)


def correction(amount: int, **changes: Any) -> Correction:
    fields: dict[str, Any] = {
        "version": 1,
        "prediction_id": PREDICTION,
        "correction": f"c-{amount}",
        "amount_nano_usd": amount,
        "reason": "not delivered",
        "corrected_at": NOW * 10**6,
    }
    return Correction(**(fields | changes))


def inclusion(stated: Charge, *, index: int = 2, size: int = 5, **changes: Any) -> Inclusion:
    """The charge among other leaves of its day."""
    leaves = [leaf_hash(bytes([number])) for number in range(size)]
    leaves[index] = leaf_hash(stated.payload())
    head: dict[str, Any] = {
        "version": 1,
        "sequence": 1,
        "previous": encode_base64url(bytes(32)),
        "day": "2025-11-24",
        "size": size,
        "root": encode_base64url(root_of(leaves)),
    }
    path = tuple(encode_base64url(one) for one in inclusion_path(index, size, range_hash_of(leaves)))
    return Inclusion(head=signed(DayHead(**(head | changes))), index=index, path=path)


def document(stated: Charge | None = None, **changes: Any) -> bytes:
    """A complete document of the charge; `changes` replace its fields."""
    stated = stated or charge()
    fields: dict[str, Any] = {
        "format": DOCUMENT_FORMAT,
        "platform": "https://intarsia.example",
        "charge": signed(stated),
        "corrections": (signed(correction(1_000)),),
        "inclusion": inclusion(stated),
    }
    return msgspec.json.encode(ReceiptDocument(**(fields | changes)))
