"""The job of the confined child that opens a stranger's adapter: `u32 length ‖ JSON ‖ 32-byte key` on its stdin.

Its answer, one JSON object on stdout, is `protocol.admin.Verification`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from protocol.leases import PackageIdentity
from protocol.messages import Bytes32, Digest, Request

MAX_JOB_BYTES = 1 << 20


class BaseShapes(Request, frozen=True):
    """The base that the adapter must fit. `shapes` maps a module suffix to (out, in) features."""

    name: str
    fingerprint: Digest
    hidden_size: int
    num_layers: int
    shapes: dict[str, tuple[int, int]]


class VerificationJob(Request, frozen=True):
    """What to open, what it must be, and how much memory (bytes) and processor time (seconds) it may take."""

    path: str
    digest: Digest
    creator_public_key: Bytes32
    identity: PackageIdentity
    base: BaseShapes
    max_plaintext: Annotated[int, msgspec.Meta(gt=0)]
    cpu_seconds: Annotated[int, msgspec.Meta(gt=0)]
