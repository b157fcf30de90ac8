"""Start the confined child that opens a stranger's adapter, give it its job, and read its answer."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import serving
from protocol.admin import Refused, Verification
from protocol.encoding import encode_base64url
from protocol.errors import ProtocolError
from protocol.messages import decode
from protocol.verification import BaseShapes, Checked, VerificationJob, frame_job
from sealed_weights import BaseSpec
from serving.platform.errors import VerificationFailed
from serving.platform.link import HeldKey
from serving.platform.sealed import MAX_PLAINTEXT

log = logging.getLogger(__name__)

CHILD_SECONDS = 60.0
CHILD_CPU_SECONDS = 50
MAX_ANSWER_BYTES = 1 << 20
MODULE = "serving.platform.verify_child"


def check_in_child(
    path: Path, key: HeldKey, base: BaseSpec, *, max_plaintext: int = MAX_PLAINTEXT, must_lock: bool = False
) -> Checked:
    """Open and check a package in a confined child process; return its answer, a refusal if it broke its limits.

    Raises VerificationFailed when the child could not do its work for a reason that is not the adapter's.
    """
    message = frame_job(_job(path, key, base, max_plaintext, must_lock), key.dek)
    with start_child(MODULE) as child:
        try:
            # A bytearray, unlike bytes, can be wiped afterwards; Popen takes any buffer.
            out, err = child.communicate(message, timeout=CHILD_SECONDS)  # type: ignore[arg-type]
        except subprocess.TimeoutExpired:
            child.kill()
            return _over_limits("the check took too long")
        finally:
            message[:] = bytes(len(message))
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return _over_limits("the check took too much processor time or memory")
    return _answer(child, out, err)


def probe_confinement() -> list[str]:
    """Return the layers of a child's confinement that this system refuses. Raises VerificationFailed or OSError."""
    with start_child(MODULE, "--probe") as child:
        try:
            out, err = child.communicate(timeout=CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            raise VerificationFailed("the verification process took too long") from None
    return _answer(child, out, err).missing


def start_child(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of ours with three pipes, and nothing else of this process's files or environment."""
    root = str(Path(serving.__file__).resolve().parents[1])
    # OpenBLAS would start threads: namespaces are for processes with one thread, and threads count as processes.
    environment = {"PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": os.defpath}
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=root,
    )


def _answer(child: subprocess.Popen[bytes], out: bytes, err: bytes) -> Checked:
    try:
        if child.returncode != 0 or len(out) > MAX_ANSWER_BYTES:
            raise ProtocolError
        return decode(out, Checked)
    except ProtocolError:
        log.error("the verification child failed with %s: %s", child.returncode, _last_line(err))
        raise VerificationFailed("the verification process failed") from None


def _over_limits(message: str) -> Checked:
    refusal = Refused("package", "must be checked within the time and memory limits", message)
    return Checked(Verification(ok=False, refusal=refusal), [])


def _job(path: Path, key: HeldKey, base: BaseSpec, max_plaintext: int, must_lock: bool) -> VerificationJob:
    return VerificationJob(
        path=str(path.resolve()),
        digest=key.digest,
        creator_public_key=encode_base64url(key.creator_public_key),
        identity=key.identity,
        base=BaseShapes(
            name=base.name,
            fingerprint=base.fingerprint.hex(),
            hidden_size=base.hidden_size,
            num_layers=base.num_layers,
            shapes=dict(base.shapes),
            vocab_size=base.vocab_size,
            tied=base.tied,
            biased=base.biased,
        ),
        max_plaintext=max_plaintext,
        cpu_seconds=CHILD_CPU_SECONDS,
        must_lock=must_lock,
    )


def _last_line(text: bytes) -> str:
    lines: Sequence[str] = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "no message"
