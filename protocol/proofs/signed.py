"""Statements that the platform signs: JWS (RFC 7515) with Ed25519, the time of signing in the protected header.

The payload itself has no time of signing, so that one charge has one payload, and one leaf in its day's tree, however
often it is signed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.api_jws import PyJWS

from protocol.proofs.errors import ProofRejected
from protocol.proofs.keys import KeyFile

StatementType = Literal["intarsia-charge", "intarsia-correction", "intarsia-day"]
MAX_STATEMENT_BYTES = 32_768
_HEADER = {"alg", "iat", "kid", "typ"}
_jws = PyJWS(algorithms=["EdDSA"])


@dataclass(frozen=True, slots=True)
class Signed:
    """A verified statement: its payload, who signed it and when (unix seconds)."""

    payload: bytes
    kid: str
    signed_at: int


def sign_statement(payload: bytes, private: Ed25519PrivateKey, *, kid: str, typ: StatementType, signed_at: int) -> str:
    """Return the payload signed, as a compact JWS. `signed_at` is in unix seconds."""
    return _jws.encode(payload, private, algorithm="EdDSA", headers={"iat": signed_at, "kid": kid, "typ": typ})


def read_statement(token: str, keys: KeyFile, typ: StatementType) -> Signed:
    """Verify a statement of this type under the key that was valid when it was signed; raises ProofRejected."""
    if len(token) > MAX_STATEMENT_BYTES:
        raise ProofRejected("malformed", f"a signed statement has at most {MAX_STATEMENT_BYTES} bytes")
    try:
        header: dict[str, Any] = jwt.get_unverified_header(token)
    except jwt.InvalidTokenError:
        raise ProofRejected("malformed", "this is no signed statement") from None
    kid, signed_at = header.get("kid"), header.get("iat")
    if set(header) != _HEADER or header["alg"] != "EdDSA" or type(signed_at) is not int or type(kid) is not str:
        raise ProofRejected("malformed", "the statement is not signed as the platform signs")
    if header["typ"] != typ:
        raise ProofRejected("malformed", f"the statement is not of the type {typ}")
    key = keys.key_at(kid, signed_at)
    try:
        payload: bytes = _jws.decode_complete(token, key, algorithms=["EdDSA"])["payload"]
    except (jwt.InvalidTokenError, ValueError):
        raise ProofRejected("signature", "the platform's signature does not verify") from None
    return Signed(payload, kid, signed_at)
