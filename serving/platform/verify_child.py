"""The child process that opens a stranger's adapter: `python -m serving.platform.verify_child`.

It reads a job and the key from a pipe. From then on it cannot write a file, start a process, dump core, or use more
memory or processor time than the job allows. Its findings go to stdout as one JSON object; the plaintext ends with it.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any, BinaryIO

from protocol.admin import Refused, Verification
from protocol.encoding import decode_base64url
from protocol.errors import ProtocolError
from protocol.messages import encode
from protocol.verification import VerificationJob, read_job
from sealed_weights import BaseSpec, IntakeError, SealError, check_adapter, open_package

DEK_BYTES = 32
# Interpreter, numpy and the cryptographic library map about 700 MiB of addresses before the first byte of an adapter.
ADDRESS_SPACE_BASE = 2 << 30


def main() -> int:
    """Do one job from stdin. Exit code 0 whenever there is an answer, a refusal included."""
    try:
        job = read_job(sys.stdin.buffer)
    except ProtocolError:
        return 2
    confine(memory=ADDRESS_SPACE_BASE + 2 * job.max_plaintext, cpu_seconds=job.cpu_seconds)
    sys.stdout.buffer.write(encode(_verify(job, _read_key(sys.stdin.buffer))))
    sys.stdout.flush()
    return 0


def _verify(job: VerificationJob, dek: bytearray) -> Verification:
    try:
        return Verification(ok=True, report=check(job, dek))
    except IntakeError as error:
        refused = Refused(error.field, error.rule, str(error))
    except SealError as error:
        refused = Refused("package", "must be the sealed package of this version", str(error))
    except MemoryError:
        refused = Refused("package", "must be checked within the memory limit", "the adapter takes too much memory")
    return Verification(ok=False, refusal=refused)


def confine(*, memory: int, cpu_seconds: int) -> None:
    """Give up, for good, all rights that checking an adapter does not need. (Root ignores the limit on processes.)"""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def check(job: VerificationJob, dek: bytearray) -> dict[str, Any]:
    """Open the package and run the strict intake; returns the report. Raises SealError (IntakeError among them)."""
    base = BaseSpec(
        name=job.base.name,
        fingerprint=bytes.fromhex(job.base.fingerprint),
        hidden_size=job.base.hidden_size,
        num_layers=job.base.num_layers,
        shapes=job.base.shapes,
    )
    opened = open_package(
        Path(job.path),
        dek=dek,
        creator_public_key=decode_base64url(job.creator_public_key),
        expected_digest=job.digest,
        max_plaintext=job.max_plaintext,
        threads=1,
    )
    header, identity = opened.header, job.identity
    if (header.creator_id, header.model_id) != (identity.creator_id, identity.model_id):
        raise SealError("package creator or model: is not the one the vault names")
    if header.version != identity.version or header.base_fingerprint != base.fingerprint:
        raise SealError("package version or base model: is not the one the vault names")
    summary = check_adapter((opened.config, opened.tensors), base)
    return {
        "rank": summary.rank,
        "targets": list(summary.targets),
        "dtype": summary.dtype,
        "parameters": summary.parameter_count,
        "tensor_count": summary.tensor_count,
        "bytes": summary.bytes,
        "use_rslora": summary.use_rslora,
    }


def _read_key(pipe: BinaryIO) -> bytearray:
    dek = bytearray(DEK_BYTES)
    if pipe.readinto(dek) != DEK_BYTES:  # type: ignore[attr-defined]
        raise SealError("the key did not arrive")
    return dek


if __name__ == "__main__":
    sys.exit(main())
