"""Verification of a new adapter: strict intake in a confined child, then a few prompts through the engine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import serving
from protocol.admin import Refused, Verification
from protocol.encoding import encode_base64url
from protocol.errors import ProtocolError
from protocol.messages import decode
from protocol.verification import BaseShapes, VerificationJob, frame_job
from sealed_weights import BaseSpec
from serving.core import AdapterRef, Request, SamplingParams
from serving.engine import Engine
from serving.errors import AdapterUnavailable, DeadlineExceeded, EngineError, NonFiniteOutput
from serving.platform.errors import PlatformError
from serving.platform.link import HeldKey, PlatformLink
from serving.platform.packages import PackageStore
from serving.platform.sealed import MAX_PLAINTEXT, SealedAdapterSource
from serving.tokenization.tokenizer import Tokenizer

log = logging.getLogger(__name__)

CHILD_SECONDS = 60.0
CHILD_CPU_SECONDS = 50
MAX_ANSWER_BYTES = 1 << 20
SMOKE_PROMPTS = ("Hello", "The quick brown fox", "1, 2, 3,")
SMOKE_TOKENS = 8
SMOKE_SECONDS = 30.0


def _refused(field: str, rule: str, message: str) -> Verification:
    """Return a negative answer; every part is safe to show to the creator."""
    return Verification(ok=False, refusal=Refused(field, rule, message))


def _over_limits(message: str) -> Verification:
    return _refused("package", "must be checked within the time and memory limits", message)


class VerificationFailed(PlatformError):
    """A verification that could not be carried out. It is no verdict on the adapter and is worth retrying."""

    code = "verification_failed"


class Verifier:
    """A verifier of one package at a time, because each may take as much memory as the largest adapter."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        base: BaseSpec,
        link: PlatformLink,
        packages: PackageStore,
        source: SealedAdapterSource,
    ) -> None:
        self._engine, self._tokenizer, self._base = engine, tokenizer, base
        self._link, self._packages, self._source = link, packages, source
        self._one = asyncio.Lock()

    async def verify(self, digest: str) -> Verification:
        """Return the answer of /admin/verify. Raises PlatformError when the verification could not be carried out."""
        async with self._one:
            began = time.monotonic()
            key = await asyncio.to_thread(self._link.request_key, digest, "verify")
            try:
                path = await asyncio.to_thread(self._packages.fetch, digest, key.package_size)
                answer = await asyncio.to_thread(run_child, path, key, self._base)
                if answer.ok:
                    answer = await self._smoke(key, answer)
                else:
                    self._packages.discard(digest)
            except OSError as error:
                raise VerificationFailed(f"the package cannot be stored or read: {error.strerror}") from None
            finally:
                key.wipe()
                self._link.leases.give_back(digest)
            verdict = f"refused, {answer.refusal.field}" if answer.refusal else "ok"
            log.info("verified %s in %.1f s: %s", digest[:12], time.monotonic() - began, verdict)
            return answer

    async def _smoke(self, key: HeldKey, answer: Verification) -> Verification:
        self._source.offer_candidate(key)
        try:
            await asyncio.wrap_future(self._engine.readmit(key.digest))
            await asyncio.gather(*(self._prompt(key.digest, prompt) for prompt in SMOKE_PROMPTS))
        except NonFiniteOutput:
            return _refused("smoke prompts", "must give finite logits", "the model's output is not finite")
        except AdapterUnavailable as error:
            return _refused("adapter", "must fit into a replica", str(error))
        except (EngineError, TimeoutError) as error:
            raise VerificationFailed(f"the smoke prompts could not be run ({type(error).__name__})") from None
        finally:
            self._source.withdraw_candidate(key.digest)
            # Free the accelerator's memory: a published version is loaded under its own lease.
            await asyncio.wrap_future(self._engine.revoke(key.digest))
            await asyncio.wrap_future(self._engine.readmit(key.digest))
        return Verification(ok=True, report=(answer.report or {}) | {"smoke": "ok"})

    async def _prompt(self, digest: str, prompt: str) -> None:
        tokens = tuple(self._tokenizer.encode(prompt, add_special_tokens=True)) or (0,)
        request = Request(
            request_id=f"smoke-{uuid.uuid4()}",
            tenant="platform",
            cache_scope=f"verify-{uuid.uuid4()}",
            adapter=AdapterRef(digest),
            prompt_token_ids=tokens,
            sampling=SamplingParams(temperature=0.0, ignore_eos=True),
            max_tokens=max(1, min(SMOKE_TOKENS, self._engine.max_model_len - len(tokens))),
            deadline=time.monotonic() + SMOKE_SECONDS,
        )
        try:
            async with asyncio.timeout(SMOKE_SECONDS + 5):
                async for _ in self._engine.submit(request):
                    pass
        except DeadlineExceeded:
            raise TimeoutError from None


def run_child(path: Path, key: HeldKey, base: BaseSpec, *, max_plaintext: int = MAX_PLAINTEXT) -> Verification:
    """Open and check a package in a confined child process; return its answer, a refusal if it broke its limits.

    Raises VerificationFailed when the child could not do its work for a reason that is not the adapter's.
    """
    job = _job(path, key, base, max_plaintext)
    root = str(Path(serving.__file__).resolve().parents[1])
    # OpenBLAS would start threads, which the child may not: they count as processes.
    environment = {"PYTHONPATH": root, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": os.defpath}
    with subprocess.Popen(
        [sys.executable, "-m", "serving.platform.verify_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=root,
    ) as child:
        message = frame_job(job, key.dek)
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
    try:
        if child.returncode != 0 or len(out) > MAX_ANSWER_BYTES:
            raise ProtocolError
        return decode(out, Verification)
    except ProtocolError:
        log.error("the verification child failed with %s: %s", child.returncode, _last_line(err))
        raise VerificationFailed("the verification process failed") from None


def _job(path: Path, key: HeldKey, base: BaseSpec, max_plaintext: int) -> VerificationJob:
    return VerificationJob(
        path=str(path.resolve()),
        digest=key.digest,
        creator_public_key=encode_base64url(key.creator_public_key),
        identity=key.identity,
        base=BaseShapes(base.name, base.fingerprint.hex(), base.hidden_size, base.num_layers, dict(base.shapes)),
        max_plaintext=max_plaintext,
        cpu_seconds=CHILD_CPU_SECONDS,
    )


def _last_line(text: bytes) -> str:
    lines: Sequence[str] = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "no message"
