"""Receipts as the platform checks them: signed by this replica, for this prediction, with sane figures."""

from __future__ import annotations

import uuid
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.receipts import ReceiptRejected, receipt_replica_id, verify_receipt
from serving.platform.receipts import ReceiptSigner

REPLICA, JTI = uuid.uuid4(), uuid.uuid4()
KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()
CLAIMS = {
    "iss": "replica",
    "jti": str(JTI),
    "adapter": None,
    "base": "ab" * 32,
    "prompt_tokens": 10,
    "cached_tokens": 4,
    "completion_tokens": 5,
    "finish_reason": "stop",
    "ttft_ms": 3,
    "duration_ms": 9,
    "iat": 1,
}


def check(token: str, public: bytes = PUBLIC) -> Any:
    return verify_receipt(token, jti=JTI, replica_id=REPLICA, public_key=public)


def sign(key: Any = KEY, kid: Any = REPLICA, algorithm: str = "EdDSA", **changes: Any) -> str:
    return jwt.encode(CLAIMS | changes, key, algorithm=algorithm, headers={"kid": str(kid)})


def test_the_platform_reads_what_a_replica_signs() -> None:
    signer = ReceiptSigner("ab" * 32)
    token = signer.sign(
        jti=str(JTI),
        replica_id=str(REPLICA),
        adapter="cd" * 32,
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=5,
        finish_reason="length",
        ttft_ms=3,
        duration_ms=9,
    )
    receipt = check(token, signer.public_bytes())
    assert (receipt.jti, receipt.adapter, receipt.base) == (str(JTI), "cd" * 32, "ab" * 32)
    assert (receipt.prompt_tokens, receipt.cached_tokens, receipt.completion_tokens) == (10, 4, 5)
    assert (receipt.finish_reason, receipt.ttft_ms, receipt.duration_ms) == ("length", 3, 9)
    assert receipt_replica_id(token) == REPLICA


@pytest.mark.parametrize(
    "changes",
    [
        {"key": Ed25519PrivateKey.generate()},
        {"kid": uuid.uuid4()},
        {"kid": "none"},
        {"jti": str(uuid.uuid4())},
        {"iss": "intarsia"},
        {"prompt_tokens": -1},
        {"completion_tokens": -1},
        {"cached_tokens": 11},
        {"completion_tokens": "5"},
        {"completion_tokens": 5.5},
        {"completion_tokens": True},
        {"completion_tokens": 2**63},
        {"finish_reason": "free"},
        {"key": PUBLIC, "algorithm": "HS256"},
    ],
)
def test_a_receipt_that_is_wrong_in_one_thing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ReceiptRejected):
        check(sign(**changes))


@pytest.mark.parametrize("token", ["", "a.b.c", "x" * 10_000])
def test_anything_but_a_receipt_is_refused(token: str) -> None:
    with pytest.raises(ReceiptRejected):
        check(token)
