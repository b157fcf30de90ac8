"""Evidence that a replica shows about itself when it registers. It binds the challenge's nonce through the signature
over the whole registration. Its kind decides what it proves, and the release log records a hash of it.

A hardware kind (SEV-SNP, NVIDIA confidential computing) is one more class here: it checks the vendor's report and that
the report's user data is SHA-256(nonce ‖ HPKE public key).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

from marketplace.vault.errors import NotEnrolled
from protocol.encoding import canonical_json
from protocol.names import is_digest


class AttestationVerifier(Protocol):
    """Checks one kind of evidence."""

    def verify(self, evidence: Mapping[str, Any], *, nonce: bytes, hpke_public_key: bytes) -> None:
        """Raise NotEnrolled if the evidence does not hold."""
        ...


class NoEvidence:
    """The identity alone vouches for the replica."""

    def verify(self, evidence: Mapping[str, Any], *, nonce: bytes, hpke_public_key: bytes) -> None:
        """Accept exactly `{"kind": "none"}`."""
        if dict(evidence) != {"kind": "none"}:
            raise NotEnrolled("evidence of kind none carries nothing else")


class BuildDigest:
    """The replica names the SHA-256 of its own program files. A record, not a proof: the program says it of itself."""

    def verify(self, evidence: Mapping[str, Any], *, nonce: bytes, hpke_public_key: bytes) -> None:
        """Accept `{"kind": "build-digest", "digest": 64 hex digits}`."""
        digest = evidence.get("digest")
        if set(evidence) != {"kind", "digest"} or not is_digest(str(digest)):
            raise NotEnrolled("evidence of kind build-digest carries one digest of 64 hex digits")


VERIFIERS: dict[str, AttestationVerifier] = {"none": NoEvidence(), "build-digest": BuildDigest()}


def verify_evidence(evidence: Mapping[str, Any], *, nonce: bytes, hpke_public_key: bytes) -> None:
    """Check evidence of any known kind; raises NotEnrolled."""
    verifier = VERIFIERS.get(str(evidence.get("kind")))
    if verifier is None:
        raise NotEnrolled("this kind of evidence is not known here")
    verifier.verify(evidence, nonce=nonce, hpke_public_key=hpke_public_key)


def evidence_hash(evidence: Mapping[str, Any]) -> bytes:
    """Return SHA-256 of the canonical evidence, as bound into every lease."""
    return hashlib.sha256(canonical_json(dict(evidence))).digest()
