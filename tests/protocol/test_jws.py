"""Signed tokens: any JWT library reads and writes them, and no other form or spelling is read."""

from __future__ import annotations

import json

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol import jws
from protocol.encoding import encode_base64url

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
CLAIMS = {"sub": "a", "n": 1}
TOKEN = jws.sign(json.dumps(CLAIMS).encode(), KEY, kid="one")


def by_hand(header: object, payload: bytes = b"{}") -> str:
    signed = f"{encode_base64url(json.dumps(header).encode())}.{encode_base64url(payload)}"
    return f"{signed}.{encode_base64url(KEY.sign(signed.encode()))}"


def test_a_jwt_library_reads_what_is_signed_here() -> None:
    assert jwt.decode(TOKEN, KEY.public_key(), algorithms=["EdDSA"]) == CLAIMS
    assert jwt.get_unverified_header(TOKEN) == {"alg": "EdDSA", "kid": "one", "typ": "JWT"}


def test_what_a_jwt_library_signs_is_read_here() -> None:
    token = jwt.encode(CLAIMS, KEY, algorithm="EdDSA", headers={"kid": "two"})
    assert jws.key_id(token) == "two"
    assert json.loads(jws.verified(token, KEY.public_key())) == CLAIMS


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none", "kid": "one"},
        {"alg": "HS256", "kid": "one"},
        {"alg": "EdDSA"},
        {"alg": "EdDSA", "kid": None},
        {"alg": "EdDSA", "kid": "one", "crit": ["exp"]},
        {"alg": "EdDSA", "kid": "one", "jwk": {}},
        ["EdDSA"],
    ],
    ids=range(7),
)
def test_no_other_header_is_read(header: object) -> None:
    with pytest.raises(jws.Unsigned):
        jws.verified(by_hand(header), KEY.public_key())


@pytest.mark.parametrize(
    "token", ["", ".", "..", "a.b.c", TOKEN + "=", TOKEN + ".x", "x" + TOKEN, TOKEN.replace(".", "")]
)
def test_no_other_form_is_read(token: str) -> None:
    with pytest.raises(jws.Unsigned):
        jws.verified(token, KEY.public_key())


def test_a_signature_of_another_key_or_another_payload_does_not_verify() -> None:
    with pytest.raises(jws.Unsigned):
        jws.verified(TOKEN, Ed25519PrivateKey.from_private_bytes(b"o" * 32).public_key())
    header, _, signature = TOKEN.split(".")
    with pytest.raises(jws.Unsigned):
        jws.verified(f"{header}.{encode_base64url(b'{}')}.{signature}", KEY.public_key())


def test_a_token_has_one_spelling() -> None:
    """The last character of a signature has bits that say nothing: set, they would make another text of one token."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = TOKEN[:-1] + letters[letters.index(TOKEN[-1]) + 1]
    with pytest.raises(jws.Unsigned):
        jws.verified(other, KEY.public_key())
