"""Receipts are believed within the ticket only: of the dispatched replica, for this attempt, up to the grant."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.receipts import Grant, ReceiptRejected, claims_of, receipt_replica_id, verify_receipt
from serving.platform.receipts import ReceiptSigner

REPLICA, LATER_BOOT, JTI = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
KEY, LATER_KEY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()
KEYS = {REPLICA: PUBLIC, LATER_BOOT: LATER_KEY.public_key().public_bytes_raw()}
ADAPTER, BASE = "cd" * 32, "ab" * 32
GRANT = Grant(
    prediction_id=JTI,
    attempt=2,
    replica_id=REPLICA,
    adapter=ADAPTER,
    base=BASE,
    max_prompt_tokens=12,
    max_tokens=6,
    latency_class="batch",
)
CLAIMS = {
    "iss": "replica",
    "jti": str(JTI),
    "attempt": 2,
    "replica_id": str(REPLICA),
    "adapter": ADAPTER,
    "base": BASE,
    "prompt_tokens": 10,
    "cached_tokens": 4,
    "completion_tokens": 5,
    "finish_reason": "stop",
    "ttft_ms": 3,
    "duration_ms": 9,
    "iat": 1,
    "latency_class": "batch",
}


def sign(key: Any = KEY, kid: Any = REPLICA, algorithm: str = "EdDSA", **changes: Any) -> str:
    return jwt.encode(CLAIMS | changes, key, algorithm=algorithm, headers={"kid": str(kid)})


def test_the_platform_reads_what_a_replica_signs() -> None:
    signer = ReceiptSigner(BASE)
    token = signer.sign(
        jti=str(JTI),
        attempt=2,
        replica_id=str(REPLICA),
        signer_id=str(REPLICA),
        adapter=ADAPTER,
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=5,
        finish_reason="length",
        ttft_ms=3,
        duration_ms=9,
        latency_class="batch",
    )
    receipt = verify_receipt(token, GRANT, {REPLICA: signer.public_bytes()})
    assert (receipt.jti, receipt.attempt, receipt.replica_id) == (str(JTI), 2, str(REPLICA))
    assert (receipt.adapter, receipt.base) == (ADAPTER, BASE)
    assert (receipt.prompt_tokens, receipt.cached_tokens, receipt.completion_tokens) == (10, 4, 5)
    assert (receipt.finish_reason, receipt.ttft_ms, receipt.duration_ms) == ("length", 3, 9)
    assert receipt_replica_id(token) == REPLICA


def test_an_answer_of_a_closed_set_is_a_place_and_a_receipt_without_one_is_as_before() -> None:
    signer = ReceiptSigner(BASE)
    made = {name: value for name, value in CLAIMS.items() if name not in ("iss", "iat", "base")}
    plain, placed = (signer.sign(**made, signer_id=str(REPLICA), answer=answer) for answer in (None, 63))
    assert "answer" not in jwt.decode(plain, options={"verify_signature": False})
    assert claims_of(plain).answer is msgspec.UNSET and claims_of(placed).answer == 63
    assert verify_receipt(placed, GRANT, {REPLICA: signer.public_bytes()}).answer == 63
    for wrong in (-1, 64, "groceries", None, 1.5):
        with pytest.raises(ReceiptRejected, match="malformed"):
            verify_receipt(sign(answer=wrong), GRANT, KEYS)
    for token in ("", "a", "a.b.c", "a.e30.c"):
        with pytest.raises(ReceiptRejected, match="malformed"):
            claims_of(token)


def test_the_whole_grant_may_be_claimed() -> None:
    receipt = verify_receipt(sign(prompt_tokens=12, cached_tokens=12, completion_tokens=6), GRANT, KEYS)
    assert (receipt.prompt_tokens, receipt.completion_tokens) == (12, 6)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"key": Ed25519PrivateKey.generate()}, "signature"),
        ({"key": LATER_KEY}, "signature"),
        ({"key": PUBLIC, "algorithm": "HS256"}, "signature"),
        ({"kid": uuid.uuid4()}, "signer"),
        ({"kid": LATER_BOOT, "key": LATER_KEY}, "signer"),
        ({"kid": LATER_BOOT, "key": LATER_KEY, "finish_reason": "cancelled"}, "signer"),
        ({"kid": "none"}, "malformed"),
        ({"jti": str(uuid.uuid4())}, "prediction"),
        ({"attempt": 1}, "attempt"),
        ({"attempt": 3}, "attempt"),
        ({"replica_id": str(LATER_BOOT)}, "replica"),
        ({"adapter": "ef" * 32}, "adapter"),
        ({"adapter": None}, "adapter"),
        ({"base": "cd" * 32}, "base"),
        ({"latency_class": "standard"}, "latency_class"),
        ({"latency_class": "tomorrow"}, "malformed"),
        ({"prompt_tokens": 13}, "prompt_tokens"),
        ({"completion_tokens": 7}, "completion_tokens"),
        ({"cached_tokens": 11}, "cached_tokens"),
        ({"ttft_ms": 10}, "times"),
        ({"queue_ms": 10}, "times"),
        ({"iss": "intarsia"}, "malformed"),
        ({"attempt": 0}, "malformed"),
        ({"attempt": 2**15}, "malformed"),
        ({"prompt_tokens": -1}, "malformed"),
        ({"completion_tokens": -1}, "malformed"),
        ({"completion_tokens": "5"}, "malformed"),
        ({"completion_tokens": 5.5}, "malformed"),
        ({"completion_tokens": True}, "malformed"),
        ({"completion_tokens": 2**53}, "malformed"),
        ({"completion_tokens": 2**63}, "malformed"),
        ({"completion_tokens": 10**400}, "malformed"),
        ({"finish_reason": "free"}, "malformed"),
    ],
    ids=range(33),
)
def test_a_receipt_that_is_wrong_in_one_thing_is_refused_by_that_rule(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ReceiptRejected) as refused:
        verify_receipt(sign(**changes), GRANT, KEYS)
    assert refused.value.rule == rule


@pytest.mark.parametrize("missing", sorted(set(CLAIMS) - {"iss", "latency_class"}))
def test_a_receipt_without_one_of_its_claims_is_refused(missing: str) -> None:
    claims = {name: value for name, value in CLAIMS.items() if name != missing}
    token = jwt.encode(claims, KEY, algorithm="EdDSA", headers={"kid": str(REPLICA)})
    with pytest.raises(ReceiptRejected) as refused:
        verify_receipt(token, GRANT, KEYS)
    assert refused.value.rule == "malformed"


def test_a_receipt_of_before_latency_classes_is_of_the_standard_class() -> None:
    token = jwt.encode({k: v for k, v in CLAIMS.items() if k != "latency_class"}, KEY, "EdDSA", {"kid": str(REPLICA)})
    with pytest.raises(ReceiptRejected) as refused:
        verify_receipt(token, GRANT, KEYS)
    assert refused.value.rule == "latency_class"
    grant = dataclasses.replace(GRANT, latency_class="standard")
    assert verify_receipt(token, grant, KEYS).latency_class == "standard"


def test_a_later_boot_signs_what_a_crash_interrupted_within_the_same_grant() -> None:
    token = sign(LATER_KEY, LATER_BOOT, finish_reason="interrupted", ttft_ms=None, duration_ms=0)
    assert verify_receipt(token, GRANT, KEYS).completion_tokens == 5
    too_much = sign(LATER_KEY, LATER_BOOT, finish_reason="interrupted", completion_tokens=7)
    with pytest.raises(ReceiptRejected) as refused:
        verify_receipt(too_much, GRANT, KEYS)
    assert refused.value.rule == "completion_tokens"


def test_a_boot_that_no_key_is_given_for_signs_nothing() -> None:
    token = sign(LATER_KEY, LATER_BOOT, finish_reason="interrupted")
    with pytest.raises(ReceiptRejected) as refused:
        verify_receipt(token, GRANT, {REPLICA: PUBLIC})
    assert refused.value.rule == "signer"


@pytest.mark.parametrize(
    "token", ["", "a.b.c", "x" * 10_000, sign() + "x" * 5_000], ids=["empty", "words", "long", "padded"]
)
def test_anything_but_a_receipt_is_refused(token: str) -> None:
    with pytest.raises(ReceiptRejected) as refused:
        verify_receipt(token, GRANT, KEYS)
    assert refused.value.rule == "malformed"
