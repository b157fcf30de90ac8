"""Registration: its signature covers every field, and its version is read before anything else."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
import pytest

from protocol.encoding import encode_base64url
from protocol.errors import ProtocolError, VersionMismatch
from protocol.replicas import (
    Introduction,
    Registration,
    decode_keys,
    encode_keys,
    read_registered,
    read_registration,
    signed_message,
)
from protocol.version import PROTOCOL_VERSION
from tests.protocol.test_messages import KEY, REGISTRATION

OTHER_KEY = encode_base64url(b"\x01" * 32)
REGISTERED: dict[str, Any] = {
    "protocol_version": PROTOCOL_VERSION,
    "replica_id": str(uuid.uuid4()),
    "session_token": "secret",
    "vault_public_key": KEY,
    "ticket_keys": {"k": KEY},
    "heartbeat_seconds": 2,
    "lease_seconds": 30,
}


def signed(**changes: Any) -> bytes:
    return signed_message(msgspec.convert(REGISTRATION | changes, Registration))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol_version", PROTOCOL_VERSION + 1),
        ("name", "replica-2"),
        ("url", "http://127.0.0.1:2"),
        ("base", "0b" * 32),
        ("hpke_public_key", OTHER_KEY),
        ("receipt_public_key", OTHER_KEY),
        ("nonce", OTHER_KEY),
        ("evidence", {"kind": "build-digest", "digest": "ab" * 32}),
        ("role", "prefill"),
        ("transfer_url", "https://10.0.0.1:7443"),
    ],
)
def test_the_signature_covers_every_field(field: str, value: Any) -> None:
    assert signed(**{field: value}) != signed()


def test_the_list_of_covered_fields_above_is_complete() -> None:
    (mark,) = test_the_signature_covers_every_field.pytestmark  # type: ignore[attr-defined]
    assert {field for field, _ in mark.args[1]} == set(Introduction.__struct_fields__)


def test_both_sides_sign_the_same_bytes() -> None:
    fields = {name: value for name, value in REGISTRATION.items() if "signature" not in name}
    shuffled = dict(reversed(fields.items()))
    assert signed_message(msgspec.convert(shuffled, Introduction)) == signed()


@pytest.mark.parametrize("version", [1, PROTOCOL_VERSION + 1])
def test_a_replica_of_another_version_is_told_both(version: int) -> None:
    # Only the version is understood of a message that another version wrote.
    with pytest.raises(VersionMismatch, match=f"protocol {version}, .* protocol {PROTOCOL_VERSION}: upgrade"):
        read_registration(json.dumps({"protocol_version": version, "wholly": "different"}).encode())


def test_a_replica_without_a_version_is_of_the_first() -> None:
    fields = {name: value for name, value in REGISTRATION.items() if name != "protocol_version"}
    with pytest.raises(VersionMismatch, match=r"the replica speaks protocol 1, .* upgrade the replica"):
        read_registration(json.dumps(fields).encode())


@pytest.mark.parametrize("version", [True, "2", None, 2.5])
def test_a_version_is_a_whole_number(version: Any) -> None:
    with pytest.raises(ProtocolError):
        read_registration(json.dumps(REGISTRATION | {"protocol_version": version}).encode())


@pytest.mark.parametrize("version", [1, PROTOCOL_VERSION + 1])
def test_a_platform_of_another_version_is_refused_with_both(version: int) -> None:
    older = "the platform" if version < PROTOCOL_VERSION else "this replica"
    with pytest.raises(VersionMismatch, match=rf"protocol {version}, .* protocol {PROTOCOL_VERSION}: upgrade {older}"):
        read_registered(json.dumps({"protocol_version": version, "id": 7}).encode())


def test_a_session_token_is_never_shown() -> None:
    registered = read_registered(json.dumps(REGISTERED).encode())
    assert registered.session_token == "secret"
    assert "secret" not in repr(registered) and "secret" not in f"{registered}"


def test_ticket_keys_have_32_bytes() -> None:
    keys = {"a": bytes(32), "b": b"\xff" * 32}
    assert decode_keys(encode_keys(keys)) == keys
    for text in (encode_base64url(bytes(31)), KEY + "=", "", "é" * 43):
        with pytest.raises(ProtocolError):
            decode_keys({"a": text})
