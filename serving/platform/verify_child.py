"""The child process that opens a stranger's adapter: `python -m serving.platform.verify_child`.

It reads a job and the key from a pipe, opens the package and then gives up every right but to compute and to answer
(`confinement`). Its findings go to stdout as one JSON object; the plaintext ends with it. With `--probe` it has no job:
it confines itself and names the layers that this system does not grant.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

from protocol.admin import Refused, Verification
from protocol.encoding import decode_base64url
from protocol.errors import ProtocolError
from protocol.lineage import SKETCH_KEY, write_sketch
from protocol.messages import encode
from protocol.verification import Checked, VerificationJob, read_job
from sealed_weights import (
    BaseSpec,
    IntakeError,
    MemoryNotLocked,
    OpenFile,
    SealError,
    check_adapter,
    check_layout,
    open_package,
    open_regular,
    parse_contract,
    parse_reference,
)
from serving.platform.confinement import confine
from serving.platform.sketch import sketch_of

DEK_BYTES = 32
# For the header's 20,000 tensors as Python objects, and for the largest tensor's values on their way through numpy.
WORKING_BYTES = 256 << 20
PROBE_SECONDS = 10


def main(arguments: list[str]) -> int:
    """Do one job from stdin. Exit code 0 whenever there is an answer, a refusal included."""
    if arguments == ["--probe"]:
        return _answer(Checked(None, confine(memory=WORKING_BYTES, cpu_seconds=PROBE_SECONDS)))
    try:
        job = read_job(sys.stdin.buffer)
        dek = _read_key(sys.stdin.buffer)
    except ProtocolError:
        return 2
    return _answer(_verify(job, dek))


def _answer(checked: Checked) -> int:
    sys.stdout.buffer.write(encode(checked))
    sys.stdout.flush()
    return 0


def _verify(job: VerificationJob, dek: bytearray) -> Checked:
    missing: list[str] = []
    try:
        with open_regular(Path(job.path)) as (descriptor, size):
            missing = confine(memory=WORKING_BYTES + 2 * min(size, job.max_plaintext), cpu_seconds=job.cpu_seconds)
            return Checked(Verification(ok=True, report=check(job, OpenFile(descriptor, size), dek)), missing)
    except IntakeError as error:
        refused = Refused(error.field, error.rule, str(error))
    except SealError as error:
        refused = Refused("package", "must be the sealed package of this version", str(error))
    except MemoryError:
        refused = Refused("package", "must be checked within the memory limit", "the adapter takes too much memory")
    except MemoryNotLocked as error:
        return Checked(None, [*missing, f"locked memory ({error})"])
    return Checked(Verification(ok=False, refusal=refused), missing)


def check(job: VerificationJob, package: OpenFile, dek: bytearray) -> dict[str, Any]:
    """Open the package and run the strict intake; returns the report. Raises SealError (IntakeError among them)."""
    base = BaseSpec(
        name=job.base.name,
        fingerprint=bytes.fromhex(job.base.fingerprint),
        hidden_size=job.base.hidden_size,
        num_layers=job.base.num_layers,
        shapes=job.base.shapes,
        vocab_size=job.base.vocab_size,
        tied=job.base.tied,
        biased=job.base.biased,
    )
    opened = open_package(
        package,
        dek=dek,
        creator_public_key=decode_base64url(job.creator_public_key),
        expected_digest=job.digest,
        max_plaintext=job.max_plaintext,
        must_lock=job.must_lock,
        threads=1,
    )
    header, identity = opened.header, job.identity
    if (header.creator_id, header.model_id) != (identity.creator_id, identity.model_id):
        raise SealError("package creator or model: is not the one the vault names")
    if header.version != identity.version or header.base_fingerprint.hex() != identity.base:
        raise SealError("package version or base model: is not the one the vault names")
    if (contract := opened.contract) is not None:
        parse_contract(contract)
    if (reference := opened.reference) is not None:
        parse_reference(reference)
    summary = check_adapter((opened.config, opened.tensors), base)
    data = memoryview(opened.tensors).cast("B")
    return {
        "rank": summary.rank,
        "targets": list(summary.targets),
        "dtype": summary.dtype,
        "parameters": summary.parameter_count,
        "tensor_count": summary.tensor_count,
        "bytes": summary.bytes,
        "use_rslora": summary.use_rslora,
        SKETCH_KEY: write_sketch(sketch_of(check_layout(bytes(opened.config), data, base), data)),
    }


def _read_key(pipe: BinaryIO) -> bytearray:
    dek = bytearray(DEK_BYTES)
    if pipe.readinto(dek) != DEK_BYTES:  # type: ignore[attr-defined]
        raise ProtocolError("the key did not arrive")
    return dek


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
