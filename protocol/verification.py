"""The job of the confined child that opens a stranger's adapter: `u32 length ‖ JSON ‖ 32-byte key` on its stdin.

Its answer, one JSON object on stdout, is `Checked`.
"""

from __future__ import annotations

from typing import Annotated, BinaryIO

import msgspec

from protocol.admin import Verification
from protocol.errors import ProtocolError
from protocol.leases import PackageIdentity
from protocol.messages import Answer, Bytes32, Digest, Request, decode, encode

MAX_JOB_BYTES = 1 << 20


class BaseShapes(Request, frozen=True):
    """The base that the adapter must fit. `shapes` maps a module suffix to (out, in) features.

    tied: the head is the embedding; biased: suffixes of the modules with a bias
    """

    name: str
    fingerprint: Digest
    hidden_size: int
    num_layers: int
    shapes: dict[str, tuple[int, int]]
    vocab_size: int
    tied: bool
    biased: tuple[str, ...]


class VerificationJob(Request, frozen=True):
    """The package to open, its required identity, and its limits of memory (bytes) and processor time (seconds).

    must_lock: whether plaintext may lie only in memory that is locked in RAM
    """

    path: str
    digest: Digest
    creator_public_key: Bytes32
    identity: PackageIdentity
    base: BaseShapes
    max_plaintext: Annotated[int, msgspec.Meta(gt=0)]
    cpu_seconds: Annotated[int, msgspec.Meta(gt=0)]
    must_lock: bool


class Checked(Answer, frozen=True):
    """The child's verdict, None when it could not work; and the layers of its confinement that the system refused."""

    verification: Verification | None
    missing: list[str]


def frame_job(job: VerificationJob, key: bytearray) -> bytearray:
    """Return what the child reads. The key is in it once, so that wiping the result leaves no copy of it."""
    body = encode(job)
    framed = bytearray(len(body).to_bytes(4, "big") + body)
    framed += key
    return framed


def read_job(stream: BinaryIO) -> VerificationJob:
    """Read up to the key, which the caller reads next. Raises ProtocolError."""
    size = int.from_bytes(stream.read(4), "big")
    if not 0 < size <= MAX_JOB_BYTES:
        raise ProtocolError(f"a job has 1 to {MAX_JOB_BYTES} bytes")
    return decode(stream.read(size), VerificationJob)
