"""Verification of a new adapter: strict intake in a confined child, its contract and examples, a few prompts."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

from protocol.admin import Refused, Verification
from protocol.contracts import CONTRACT_KEY, EXAMPLES_KEY
from protocol.messages import to_fields
from protocol.reference import REFERENCE_KEY
from sealed_weights import BaseSpec, IntakeError
from serving.core import AdapterRef, Request, SamplingParams
from serving.engine import Engine
from serving.errors import AdapterUnavailable, DeadlineExceeded, EngineError, NonFiniteOutput
from serving.platform.contract_check import ContractCheck
from serving.platform.errors import VerificationFailed
from serving.platform.examples import ExampleRunner
from serving.platform.link import HeldKey, PlatformLink
from serving.platform.packages import PackageStore
from serving.platform.reference import ReferenceRunner, require_agreement
from serving.platform.sealed import SealedAdapterSource
from serving.platform.verify_process import check_in_child, probe_confinement
from serving.tokenization.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SMOKE_PROMPTS = ("Hello", "The quick brown fox", "1, 2, 3,")
SMOKE_TOKENS = 8
SMOKE_SECONDS = 30.0
_Said = tuple[tuple[int, float], ...]  # tokens with their log-probabilities


def _refused(field: str, rule: str, message: str) -> Verification:
    """Return a negative answer; every part is safe to show to the creator."""
    return Verification(ok=False, refusal=Refused(field, rule, message))


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
        contracts: ContractCheck,
        examples: ExampleRunner,
        references: ReferenceRunner,
        *,
        must_lock: bool,
    ) -> None:
        """must_lock: whether plaintext may lie only in memory that is locked in RAM."""
        self._engine, self._tokenizer, self._base = engine, tokenizer, base
        self._link, self._packages, self._source = link, packages, source
        self._contracts, self._examples, self._references = contracts, examples, references
        self._must_lock = must_lock
        self._one = asyncio.Lock()
        self._missing: list[str] = []

    @property
    def missing(self) -> list[str]:
        """Return the layers of the child's confinement that this system refuses, as far as it is known yet."""
        return list(self._missing)

    def probe(self) -> None:
        """Find out what a child's confinement lacks here, and log it. Blocks for a moment; raises nothing."""
        try:
            self._note(probe_confinement())
        except (VerificationFailed, OSError) as error:
            self._note([f"everything: no child could be started ({error})"])

    def _note(self, missing: list[str]) -> None:
        if missing and missing != self._missing:
            log.warning("the child that opens new adapters is confined without: %s", "; ".join(missing))
        self._missing = missing

    async def verify(self, digest: str) -> Verification:
        """Return the answer of /admin/verify. Raises PlatformError when the verification could not be carried out."""
        async with self._one:
            began = time.monotonic()
            key = await asyncio.to_thread(self._link.request_key, digest, "verify")
            try:
                path = await asyncio.to_thread(self._packages.fetch, digest, key.package_size)
                checked = await asyncio.to_thread(check_in_child, path, key, self._base, must_lock=self._must_lock)
                self._note(checked.missing)
                answer = checked.verification
                if answer is None:
                    raise VerificationFailed(f"the check could not be made here without {checked.missing[-1]}")
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
            found = await self._contract(key.digest)
            found |= await self._changes(key.digest)
        except IntakeError as error:
            return _refused(error.field, error.rule, str(error))
        except NonFiniteOutput:
            return _refused("smoke prompts", "must give finite logits", "the model's output is not finite")
        except AdapterUnavailable as error:
            return _refused("adapter", "must fit into a replica", str(error))
        except (EngineError, TimeoutError) as error:
            raise VerificationFailed(f"the smoke prompts could not be run ({type(error).__name__})") from None
        finally:
            self._source.withdraw_candidate(key.digest)
            self._source.forget(key.digest)
            # Free the accelerator's memory: a published version is loaded under its own lease.
            await asyncio.wrap_future(self._engine.revoke(key.digest))
            await asyncio.wrap_future(self._engine.readmit(key.digest))
        return Verification(ok=True, report=(answer.report or {}) | {"smoke": "ok"} | found)

    async def _contract(self, digest: str) -> dict[str, Any]:
        """Return what the report says of the contract. Raises IntakeError for one that cannot be kept."""
        held = await asyncio.to_thread(self._source.contract, digest)
        if held is None:
            return {}
        found = {CONTRACT_KEY: to_fields(await self._contracts.check(held.contract))}
        counts = await self._examples.run(digest, held.contract)
        return found if counts is None else found | {EXAMPLES_KEY: to_fields(counts)}

    async def _changes(self, digest: str) -> dict[str, Any]:
        """Return what the report says of PEFT's answers, if the package has any.

        Raises IntakeError for an adapter that changes no log-probability of the base, and for one whose answers here
        are others than under PEFT. Where a device computes the base differently beside other rows, an adapter that
        changes nothing is not found; one that changes something is never refused for it.
        """
        mine, bases = [
            await asyncio.gather(*(self._prompt(adapter, prompt) for prompt in SMOKE_PROMPTS))
            for adapter in (AdapterRef(digest), AdapterRef())
        ]
        reference = await asyncio.to_thread(self._source.reference, digest)
        compared = None if reference is None else await self._references.run(digest, reference)
        if mine == bases and (compared is None or compared.unchanged):
            tried = len(SMOKE_PROMPTS) + (0 if compared is None else compared.counts.rows)
            rule = f"changes nothing: on {tried} prompts it gives the base's own tokens, with the same probabilities"
            raise IntakeError("adapter", rule)
        if compared is None:
            return {}
        require_agreement(compared.counts)
        return {REFERENCE_KEY: to_fields(compared.counts)}

    async def _prompt(self, adapter: AdapterRef, prompt: str) -> _Said:
        """Return a few tokens after the prompt, which have to be finite."""
        tokens = tuple(self._tokenizer.encode(prompt, add_special_tokens=True)) or (0,)
        request = Request(
            request_id=f"smoke-{uuid.uuid4()}",
            tenant="platform",
            cache_scope=f"verify-{uuid.uuid4()}",
            adapter=adapter,
            prompt_token_ids=tokens,
            sampling=SamplingParams(temperature=0.0, ignore_eos=True, logprobs=0),
            max_tokens=max(1, min(SMOKE_TOKENS, self._engine.max_model_len - len(tokens))),
            deadline=time.monotonic() + SMOKE_SECONDS,
        )
        try:
            async with asyncio.timeout(SMOKE_SECONDS + 5):
                said = [one async for delta in self._engine.submit(request) for one in delta.logprobs]
        except DeadlineExceeded:
            raise TimeoutError from None
        return tuple((one.token_id, one.logprob) for one in said)
