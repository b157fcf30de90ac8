"""A replica's side of enrolment and registration, whose every field a test may change before or after signing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from django.test import Client

from marketplace.vault import identities
from protocol.encoding import canonical_json, encode_base64url
from protocol.replicas import enrolment_message
from protocol.version import PROTOCOL_VERSION
from sealed_weights import ReplicaKeypair
from tests.marketplace.vault.factories import FINGERPRINT, make_base


def post(client: Client, path: str, body: Any, token: str = "") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return client.post(f"/internal/v1/{path}", data=data, content_type="application/json", headers=headers)


def issue(name: str = "r1", **terms: Any) -> str:
    """Issue a credential for a replica of the tiny base at 127.0.0.1."""
    return identities.issue_credential(
        name=name, terms=identities.Terms(**({"base_model": make_base(), "host": "127.0.0.1"} | terms))
    )


class Registrar:
    """Enrols and registers as the replica `name` does."""

    def __init__(self, client: Client, name: str = "r1") -> None:
        self.client, self.name = client, name
        self.receipt_key, self.keypair = Ed25519PrivateKey.generate(), ReplicaKeypair.generate()
        self.identity = Ed25519PrivateKey.generate()

    def enrol(self, credential: str, **changes: Any) -> Any:
        public = encode_base64url(self.identity.public_key().public_bytes_raw())
        message = enrolment_message(name=self.name, credential=credential, identity_public_key=public)
        fields = {
            "protocol_version": PROTOCOL_VERSION,
            "name": self.name,
            "credential": credential,
            "identity_public_key": public,
            "signature": encode_base64url(self.identity.sign(message)),
        }
        return post(self.client, "replicas/enrolment", fields | changes)

    def nonce(self) -> str:
        answer = post(self.client, "replicas/challenge", {"name": self.name})
        assert answer.status_code == 200
        return str(answer.json()["nonce"])

    def message(self, **changes: Any) -> dict[str, Any]:
        fields = {
            "protocol_version": PROTOCOL_VERSION,
            "name": self.name,
            "url": "http://127.0.0.1:8100",
            "base": FINGERPRINT,
            "hpke_public_key": encode_base64url(self.keypair.public_bytes()),
            "receipt_public_key": encode_base64url(self.receipt_key.public_key().public_bytes_raw()),
            "nonce": self.nonce() if "nonce" not in changes else changes["nonce"],
            "evidence": {"kind": "none"},
            "role": "both",
            "transfer_url": "",
        } | changes
        signed = b"intarsia/replica/v1" + hashlib.sha256(canonical_json(fields)).digest()
        return fields | {
            "signature": encode_base64url(self.receipt_key.sign(signed)),
            "identity_signature": encode_base64url(self.identity.sign(signed)),
        }

    def register(self, message: dict[str, Any] | None = None) -> Any:
        return post(self.client, "replicas", message or self.message())
