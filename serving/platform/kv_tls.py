"""TLS 1.3 between replicas: a key for each boot, certified by the boot's receipt key, which the platform registered.

No authority is asked. The ticket of a pull names the receipt key of its source, and the reader goes on only where that
key has signed the certificate that it meets.
"""

from __future__ import annotations

import secrets
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from serving.platform.errors import PullFailed
from serving.platform.receipts import ReceiptSigner

_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "intarsia replica")])
# A boot's certificate ends with its registration, not by its date: clocks of machines differ.
_YEARS = timedelta(days=3650)


def source_context(signer: ReceiptSigner) -> tuple[ssl.SSLContext, bytes]:
    """Return the TLS side of a source, with a fresh key, and its certificate (DER)."""
    key, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_NAME)
        .issuer_name(_NAME)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _YEARS)
        .not_valid_after(now + _YEARS)
    )
    certificate = signer.certify(builder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session is resumed: each connection shows its certificate
    # `ssl` reads keys from files alone: what lies there for a moment is encrypted, its password never leaves memory.
    password = secrets.token_bytes(32).hex().encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.pem"
        path.touch(0o600)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password))
        path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        context.load_cert_chain(path, password=password)
    return context, certificate.public_bytes(Encoding.DER)


def reader_context() -> ssl.SSLContext:
    """Return the TLS side of a reader. It accepts any certificate: call `check_source` before anything is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def check_source(certificate: bytes | None, receipt_key: bytes) -> None:
    """Raise PullFailed unless the certificate (DER) is signed by the receipt key of a boot."""
    try:
        parsed = x509.load_der_x509_certificate(certificate or b"")
        Ed25519PublicKey.from_public_bytes(receipt_key).verify(parsed.signature, parsed.tbs_certificate_bytes)
    except (InvalidSignature, ValueError):
        raise PullFailed("refused", "the source's certificate is not signed by the key that the ticket names") from None
