"""The child process that opens a stranger's adapter: `python -m serving.platform.verify_child`.

It reads a job and the key from a pipe, and may then neither write a file, start a process, use more memory or processor
time than the job allows, nor dump core. What it found goes to stdout as one JSON object; the plaintext dies with it.
"""

from __future__ import annotations

import base64
import json
import resource
import sys
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

from sealed_weights import BaseSpec, IntakeError, SealError, check_adapter, open_package

DEK_BYTES = 32
MAX_JOB_BYTES = 1 << 20
# Interpreter, numpy and the cryptographic library map about 700 MiB of addresses before the first byte of an adapter.
ADDRESS_SPACE_BASE = 2 << 30


def main() -> int:
    """Do one job from stdin. Exit code 0 whenever there is an answer, a refusal included."""
    size = int.from_bytes(sys.stdin.buffer.read(4), "big")
    if not 0 < size <= MAX_JOB_BYTES:
        return 2
    job = json.loads(sys.stdin.buffer.read(size))
    confine(memory=ADDRESS_SPACE_BASE + 2 * int(job["max_plaintext"]), cpu_seconds=int(job["cpu_seconds"]))
    try:
        answer = {"ok": True, "report": check(job, _read_key(sys.stdin.buffer))}
    except IntakeError as error:
        answer = refusal(error.field, error.rule, str(error))
    except SealError as error:
        answer = refusal("package", "must be the sealed package of this version", str(error))
    except MemoryError:
        answer = refusal("package", "must be checked within the memory limit", "the adapter takes too much memory")
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    return 0


def confine(*, memory: int, cpu_seconds: int) -> None:
    """Give up for good what an adapter needs no one to have. (Root is not bound by the limit on processes.)"""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def check(job: dict[str, Any], dek: bytearray) -> dict[str, Any]:
    """Open the package and run the strict intake; returns the report. Raises SealError (IntakeError among them)."""
    base = BaseSpec(
        name=job["base"]["name"],
        fingerprint=bytes.fromhex(job["base"]["fingerprint"]),
        hidden_size=job["base"]["hidden_size"],
        num_layers=job["base"]["num_layers"],
        shapes={suffix: (shape[0], shape[1]) for suffix, shape in job["base"]["shapes"].items()},
    )
    opened = open_package(
        Path(job["path"]),
        dek=dek,
        creator_public_key=base64.b64decode(job["creator_public_key"]),
        expected_digest=job["digest"],
        max_plaintext=job["max_plaintext"],
        threads=1,
    )
    header, identity = opened.header, job["identity"]
    if (header.creator_id, header.model_id) != (UUID(identity["creator_id"]), UUID(identity["model_id"])):
        raise SealError("package creator or model: is not the one the vault names")
    if header.version != identity["version"] or header.base_fingerprint != base.fingerprint:
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


def refusal(field: str, rule: str, message: str) -> dict[str, Any]:
    """Return a negative answer; every part is safe to show to the creator."""
    return {"ok": False, "refusal": {"field": field, "rule": rule, "message": message}}


def _read_key(pipe: BinaryIO) -> bytearray:
    dek = bytearray(DEK_BYTES)
    if pipe.readinto(dek) != DEK_BYTES:  # type: ignore[attr-defined]
        raise SealError("the key did not arrive")
    return dek


if __name__ == "__main__":
    sys.exit(main())
