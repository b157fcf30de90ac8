"""Messages are refused before any code sees them: unknown fields, wrong types, values out of range, absurd nesting."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
import pytest

from protocol import admin, leases, pulls, replicas, verification
from protocol.encoding import encode_base64url
from protocol.errors import ProtocolError
from protocol.messages import (
    PREDICTION_EXTRA_KEY,
    Answer,
    Empty,
    ErrorAnswer,
    OpenAIErrorAnswer,
    PredictionExtra,
    Request,
    decode,
    encode,
    take_prediction_extra,
    to_fields,
)
from protocol.version import PROTOCOL_VERSION

DIGEST, ID = "0a" * 32, str(uuid.uuid4())
KEY, SIGNATURE = encode_base64url(bytes(32)), encode_base64url(bytes(64))
REGISTRATION = {
    "protocol_version": PROTOCOL_VERSION,
    "name": "replica-1",
    "url": "http://127.0.0.1:1",
    "base": DIGEST,
    "hpke_public_key": KEY,
    "receipt_public_key": KEY,
    "nonce": KEY,
    "evidence": {"kind": "none"},
    "role": "both",
    "transfer_url": "",
    "signature": SIGNATURE,
    "identity_signature": SIGNATURE,
}
ENROLMENT = {
    "protocol_version": PROTOCOL_VERSION,
    "name": "replica-1",
    "credential": "irc_" + "c" * 40,
    "identity_public_key": KEY,
    "signature": SIGNATURE,
}
IDENTITY = {"creator_id": ID, "model_id": ID, "version": 1, "base": DIGEST}
JOB = {
    "path": "/tmp/package",
    "digest": DIGEST,
    "creator_public_key": KEY,
    "identity": IDENTITY,
    "base": {
        "name": "tiny",
        "fingerprint": DIGEST,
        "hidden_size": 8,
        "num_layers": 2,
        "shapes": {"q_proj": (8, 8)},
        "vocab_size": 16,
        "tied": False,
        "biased": ("q_proj",),
    },
    "max_plaintext": 1,
    "cpu_seconds": 1,
    "must_lock": True,
}

# One good example of everything that one side asks of another.
REQUESTS: list[tuple[type[Request], dict[str, Any]]] = [
    (Empty, {}),
    (admin.VerifyRequest, {"digest": DIGEST}),
    (admin.RevokeRequest, {"digests": [DIGEST]}),
    (admin.PrefetchRequest, {"digests": []}),
    (admin.ConversationsRequest, {"most": 1}),
    (admin.PullOrder, {"ticket": "t", "key": KEY}),
    (admin.PullOrders, {"orders": [{"ticket": "t", "key": KEY}]}),
    (pulls.ChainRequest, {"ticket": "t", "proof": SIGNATURE, "layout": DIGEST, "key": KEY}),
    (pulls.PullRequest, {"ticket": "t", "proof": SIGNATURE, "layout": DIGEST, "keys": [KEY]}),
    (admin.CancelRequest, {"jti": ID, "attempt": 1, "delivered_tokens": 0}),
    (admin.JournalKey, {"jti": ID, "attempt": 1}),
    (admin.JournalRequest, {"predictions": [{"jti": ID, "attempt": 1}]}),
    (replicas.EnrolmentRequest, ENROLMENT),
    (replicas.ChallengeRequest, {"name": "replica-1"}),
    (replicas.Registration, REGISTRATION),
    (replicas.Heartbeat, {"stats": {}, "returned": [ID]}),
    (leases.LeaseRequest, {"digests": [DIGEST], "purpose": "serve"}),
    (verification.VerificationJob, JOB),
]


def refused(kind: type[msgspec.Struct], fields: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(json.dumps(fields).encode(), kind)


@pytest.mark.parametrize(("kind", "fields"), REQUESTS)
def test_a_request_survives_the_wire_and_bears_no_unknown_field(kind: type[Request], fields: dict[str, Any]) -> None:
    message = decode(json.dumps(fields).encode(), kind)
    assert to_fields(message) == fields and decode(encode(message), kind) == message
    refused(kind, fields | {"admin": True})


@pytest.mark.parametrize(("kind", "fields"), REQUESTS)
@pytest.mark.parametrize("wrong", [None, True, 1.5, "\n", ["\n"], [None], {"a": [1]}])
def test_no_field_takes_a_value_of_another_type(kind: type[Request], fields: dict[str, Any], wrong: Any) -> None:
    for field in msgspec.structs.fields(kind):
        free_form = field.name in ("stats", "evidence") and isinstance(wrong, dict)
        free_text = field.name in ("path", "url") and isinstance(wrong, str)
        switch = field.name == "must_lock" and wrong is True
        if not (free_form or free_text or switch):
            refused(kind, fields | {field.name: wrong})


@pytest.mark.parametrize(("kind", "fields"), REQUESTS)
def test_no_field_may_be_missing(kind: type[Request], fields: dict[str, Any]) -> None:
    for name in fields:
        refused(kind, {key: value for key, value in fields.items() if key != name})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (admin.RevokeRequest, {"digests": [DIGEST] * 10_001}),
        (admin.PrefetchRequest, {"digests": [DIGEST] * 1_001}),
        (admin.CancelRequest, {"jti": "x", "attempt": 1, "delivered_tokens": 0}),
        (admin.CancelRequest, {"jti": ID, "attempt": 0, "delivered_tokens": 0}),
        (admin.CancelRequest, {"jti": ID, "attempt": 1, "delivered_tokens": -1}),
        (admin.CancelRequest, {"jti": ID, "attempt": 1, "delivered_tokens": 2**53}),
        (admin.JournalKey, {"jti": ID, "attempt": 2**15}),
        (admin.JournalRequest, {"predictions": [{"jti": ID, "attempt": 1}] * 501}),
        (replicas.Heartbeat, {"stats": {}, "returned": [ID] * 1_001}),
        (leases.LeaseRequest, {"digests": [], "purpose": "serve"}),
        (leases.LeaseRequest, {"digests": [DIGEST] * 33, "purpose": "serve"}),
        (replicas.Registration, REGISTRATION | {"base": DIGEST[1:]}),
        (replicas.Registration, REGISTRATION | {"url": "h" * 201}),
        (replicas.Registration, REGISTRATION | {"name": "../r"}),
        (leases.LeaseRequest, {"digests": [DIGEST], "purpose": "keep"}),
        (verification.VerificationJob, JOB | {"cpu_seconds": 0}),
    ],
)
def test_a_value_out_of_range_is_refused(kind: type[Request], fields: dict[str, Any]) -> None:
    refused(kind, fields)


@pytest.mark.parametrize("digest", [DIGEST + "\n", DIGEST.upper(), DIGEST[1:], DIGEST + "0", "٠" * 64])
def test_a_digest_is_64_hex_digits_and_nothing_behind_them(digest: str) -> None:
    refused(admin.VerifyRequest, {"digest": digest})


@pytest.mark.parametrize("field", ["name", "hpke_public_key", "receipt_public_key", "nonce", "signature"])
def test_a_line_feed_behind_a_name_or_key_is_refused(field: str) -> None:
    refused(replicas.Registration, REGISTRATION | {field: f"{REGISTRATION[field]}\n"})


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b"{} {}", b'{"digest": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_such_object_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body, admin.VerifyRequest)


def test_an_answer_may_have_fields_that_the_reader_does_not_know() -> None:
    body = b'{"state": "final", "receipt": "r", "since": 3}'
    assert decode(body, admin.JournalState) == admin.JournalState("final", "r")
    assert decode(b'{"error": {"code": "c", "message": "m", "hint": 1}}', ErrorAnswer).error.code == "c"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (admin.JournalState, b'{"state": "lost"}'),
        (admin.JournalState, b'{"state": "final", "receipt": 7}'),
        (admin.Revocation, b'{"revoked": [], "aborted": true}'),
        (admin.Verification, b'{"ok": 1}'),
        (ErrorAnswer, b'{"error": "no"}'),
        (OpenAIErrorAnswer, b'{"error": {"message": null}}'),
        (leases.PackageIdentity, b'{"creator_id": "x", "model_id": "y", "version": 1}'),
        (replicas.HeartbeatAnswer, b'{"ended": {"a": "30"}, "revoked": [], "ticket_keys": {}}'),
    ],
)
def test_an_answer_of_wrong_types_is_refused(kind: type[Answer], body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(body, kind)


def test_the_addition_of_a_replica_is_taken_out_of_the_answer() -> None:
    answer = {"choices": [], PREDICTION_EXTRA_KEY: {"receipt": "r"}}
    assert take_prediction_extra(answer) == PredictionExtra("r")
    assert answer == {"choices": []} and take_prediction_extra(answer) is None
    assert take_prediction_extra([PREDICTION_EXTRA_KEY]) is None


@pytest.mark.parametrize("extra", [None, "r", {}, {"receipt": None}, {"receipt": 1}, []])
def test_a_malformed_addition_is_refused(extra: object) -> None:
    with pytest.raises(ProtocolError):
        take_prediction_extra({PREDICTION_EXTRA_KEY: extra})
