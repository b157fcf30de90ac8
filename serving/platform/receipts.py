"""Receipts signed with the replica's per-boot Ed25519 key (docs/protocol.md)."""

from __future__ import annotations

import time

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import encode_base64url
from protocol.latency import LatencyClass
from protocol.receipts import FinishReason, Receipt, ToolArguments, sign_receipt


class ReceiptSigner:
    """The replica's signer of receipts. Its key exists only in this process."""

    def __init__(self, base_fingerprint: str) -> None:
        """Make the boot's key; `base_fingerprint` is hex."""
        self._key = Ed25519PrivateKey.generate()
        self._base = base_fingerprint

    def public_bytes(self) -> bytes:
        """Return the 32-byte public key."""
        return self._key.public_key().public_bytes_raw()

    def sign_registration(self, message: bytes) -> bytes:
        """Return the 64-byte signature of a registration message."""
        return self._key.sign(message)

    def sign_pull(self, message: bytes) -> str:
        """Return the signature of a pull's proof, in base64url."""
        return encode_base64url(self._key.sign(message))

    def certify(self, builder: x509.CertificateBuilder) -> x509.Certificate:
        """Sign the certificate of this boot's TLS key: whoever knows the receipt key knows the machine."""
        return builder.sign(self._key, None)

    def sign(
        self,
        *,
        jti: str,
        attempt: int,
        replica_id: str,
        signer_id: str,
        adapter: str | None,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
        finish_reason: FinishReason,
        ttft_ms: int | None,
        duration_ms: int,
        latency_class: LatencyClass,
        answer: int | None = None,
        queue_ms: int | None = None,
        tool_arguments: ToolArguments | None = None,
        returned_tokens: int | None = None,
    ) -> str:
        """Return the receipt of one attempt of prediction `jti` as a JWT.

        `replica_id` is the id that its ticket named, `signer_id` the id under which the platform knows this boot's key.

        Token counts are exact; times are in milliseconds, `ttft_ms` is None if no token came. `answer` is the answer's
        place in its contract's closed set; `queue_ms` and `tool_arguments` are None where they are not known,
        `returned_tokens` where all completion tokens were returned.
        """
        receipt = Receipt(
            jti=jti,
            attempt=attempt,
            replica_id=replica_id,
            iat=int(time.time()),
            adapter=adapter,
            base=self._base,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=completion_tokens,
            finish_reason=finish_reason,
            ttft_ms=ttft_ms,
            duration_ms=duration_ms,
            latency_class=latency_class,
            answer=msgspec.UNSET if answer is None else answer,
            queue_ms=msgspec.UNSET if queue_ms is None else queue_ms,
            tool_arguments=msgspec.UNSET if tool_arguments is None else tool_arguments,
            returned_tokens=msgspec.UNSET if returned_tokens is None else returned_tokens,
        )
        return sign_receipt(receipt, self._key, signer_id=signer_id)
