"""Both ends for real: Django behind uvicorn, a replica process over a tiny llama, sealed packages, tickets, receipts.

A replica takes seconds to start, so each test here tells a long story.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from django.db import connection
from safetensors.numpy import load_file, save_file

from marketplace.catalog.models import BaseModel, Clearance, Version
from marketplace.catalog.services import register_base_directory
from marketplace.gateway.journals import ask_journals
from marketplace.vault import replica_client, selectors, services, tasks
from marketplace.vault.models import DataKey, Release, Replica
from marketplace.vault.replica_client import ReplicaAddress
from marketplace.vault.signing import load_ticket_signer
from protocol.admin import JournalKey, JournalState
from protocol.receipts import Grant, Receipt, verify_receipt
from protocol.reference import read_reference_counts
from protocol.tickets import TICKET_HEADER, prediction_ticket
from sealed_weights import Reference, ReferenceAnswer, generate_key, read_header, source_digest
from serving.platform.journal import UsageJournal
from tests.marketplace.vault.factories import want, wrap_for
from tests.together.replica_process import ReplicaProcess, sell
from tests.together.tiny import ADAPTERS, PROMPT, Tiny

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]


@pytest.fixture
def replica(platform_url: str, tiny: Tiny, tmp_path: Path) -> Iterator[ReplicaProcess]:
    with ReplicaProcess(platform_url, tiny.model, tmp_path / "state").running() as process:
        yield process


@dataclass
class Ask:
    """One ticketed request, with every claim open to a test's meddling."""

    replica: Replica
    body: dict[str, Any]
    claims: dict[str, Any]

    def send(self, *, body: dict[str, Any] | None = None) -> httpx.Response:
        return httpx.post(**self._arguments(body))

    def stream(self) -> contextlib.AbstractContextManager[httpx.Response]:
        return httpx.stream("POST", **self._arguments(None))

    def _arguments(self, body: dict[str, Any] | None) -> dict[str, Any]:
        if adapter := self.claims.get("adapter"):
            want(self.replica, adapter)
        raw = json.dumps(self.body).encode()
        good = prediction_ticket(
            prediction_id=uuid.uuid4(),
            attempt=1,
            replica_id=self.replica.pk,
            organization_id=uuid.uuid4(),
            adapter=None,
            body=raw,
            deadline=time.time() + 60,
            max_prompt_tokens=64,
            max_tokens=200,
            latency_class="standard",
            stop_at_grant=False,
        )
        ticket = load_ticket_signer().sign(msgspec.structs.replace(good, **self.claims))
        sent = raw if body is None else json.dumps(body).encode()
        headers = {TICKET_HEADER: ticket, "Content-Type": "application/json"}
        url = f"{self.replica.url}/v1/completions"
        return {"url": url, "content": sent, "headers": headers, "timeout": 30, "trust_env": False}


def completion(replica: ReplicaProcess, adapter: str | None, *, tokens: int = 8, **claims: Any) -> Ask:
    body = {
        "model": "acme/any",
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    return Ask(replica.row(), body, {"adapter": adapter, "jti": str(uuid.uuid4())} | claims)


def journal_of(row: Replica, asked: list[JournalKey]) -> Sequence[JournalState]:
    """The states of these predictions, asked for as the sweeper does."""
    (answer,) = ask_journals({ReplicaAddress.of(row): asked}, load_ticket_signer())
    assert answer.states is not None
    return answer.states


def administer(
    replica: ReplicaProcess, action: str, body: dict[str, Any], *, ticket_for: str | None = None
) -> httpx.Response:
    row = replica.row()
    raw = json.dumps(body).encode()
    ticket = load_ticket_signer().sign_admin(action=ticket_for or action, replica_id=row.pk, body=raw)  # type: ignore[arg-type]
    headers = {TICKET_HEADER: ticket, "Content-Type": "application/json"}
    return httpx.post(f"{row.url}/admin/{action}", content=raw, headers=headers, timeout=30, trust_env=False)


def receipt_of(ask: Ask, token: str) -> Receipt:
    """Verify a receipt under the grant of the ask's ticket."""
    return verify_receipt(token, grant_of(ask), {ask.replica.pk: bytes(ask.replica.receipt_public_key)})


def grant_of(ask: Ask) -> Grant:
    return Grant(
        prediction_id=uuid.UUID(ask.claims["jti"]),
        attempt=ask.claims.get("attempt", 1),
        replica_id=ask.replica.pk,
        adapter=ask.claims["adapter"],
        base=ask.replica.base_fingerprint,
        max_prompt_tokens=64,
        max_tokens=ask.claims.get("max_tokens", 200),
        latency_class="standard",
    )


def events(response: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_from_verification_to_a_paid_answer_to_the_kill_switch(
    replica: ReplicaProcess, tiny: Tiny, tmp_path: Path
) -> None:
    row = replica.row()
    assert BaseModel.objects.get().fingerprint == row.base_fingerprint
    assert row.evidence["kind"] == "build-digest"

    sold = sell(tiny, "r4", tmp_path, state="verifying")
    verdict = replica_client.verify(sold.version)
    assert verdict.ok and verdict.report is not None
    assert verdict.report["rank"] == 4 and verdict.report["smoke"] == "ok" and len(verdict.report["targets"]) == 7
    early = completion(replica, sold.digest).send()
    assert (early.status_code, early.json()["error"]["code"]) == (404, "adapter_unavailable")

    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.PUBLISHED)
    _an_adapter_may_come_before_anybody_asks_for_it(replica, sold.digest)
    ask = completion(replica, sold.digest)
    answer = ask.send()
    assert answer.status_code == 200, answer.text
    receipt = receipt_of(ask, answer.json()["intarsia"]["receipt"])
    assert (receipt.prompt_tokens, receipt.completion_tokens, receipt.finish_reason) == (6, 8, "length")
    assert (receipt.adapter, receipt.base) == (sold.digest, row.base_fingerprint)
    assert receipt.ttft_ms is not None and receipt.duration_ms >= receipt.ttft_ms
    assert answer.json()["choices"][0]["token_ids"] == tiny.reference("r4", PROMPT, 8)
    bare = completion(replica, None)
    assert bare.send().json()["choices"][0]["token_ids"] == tiny.reference(None, PROMPT, 8)

    streamed = completion(replica, sold.digest)
    streamed.body["stream"] = True
    last = events(streamed.send())[-1]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8
    signed = last["intarsia"]["receipt"]
    assert receipt_of(streamed, signed).completion_tokens == 8
    asked = [JournalKey(str(uuid.uuid4()), 1), JournalKey(streamed.claims["jti"], 1)]
    unknown, final = journal_of(row, asked)
    assert unknown.state == "unknown" and (final.state, final.receipt) == ("final", signed)
    assert administer(replica, "stats", {}).json()["resident"] == [sold.digest]

    assert [r.purpose for r in Release.objects.order_by("sequence")] == ["verify", "serve"]
    assert selectors.verify_own_chain(organization=sold.organization) == 2

    Version.objects.filter(pk=sold.version.pk).update(state=Version.State.REVOKED)
    assert tasks.push_revocation(str(sold.version.pk)) == 1
    refused = completion(replica, sold.digest).send()
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "adapter_revoked")
    assert administer(replica, "stats", {}).json()["resident"] == []
    assert Release.objects.count() == 2

    _a_ticket_is_good_for_one_body_one_replica_and_one_time(replica)
    _a_refused_adapter_says_why_and_nothing_in_plaintext_reaches_the_disk(replica, tiny, tmp_path)
    _a_new_version_is_compared_with_peft_and_with_the_base(replica, tiny, tmp_path)


def _a_new_version_is_compared_with_peft_and_with_the_base(replica: ReplicaProcess, tiny: Tiny, tmp_path: Path) -> None:
    def verified(name: str, answers_of: str | None, scale: float = 1.0) -> Any:
        folder = tmp_path / name
        shutil.copytree(tiny.adapters / "r4", folder)
        if scale != 1.0:
            tensors = load_file(folder / "adapter_model.safetensors")
            save_file({key: value * scale for key, value in tensors.items()}, folder / "adapter_model.safetensors")
        if answers_of is not None:
            tokens = tuple(tiny.reference(answers_of, PROMPT, 24))
            reference = Reference(source_digest(folder), "float32", (ReferenceAnswer(tuple(PROMPT), tokens),))
            (folder / "reference.json").write_bytes(reference.to_bytes())
        return replica_client.verify(sell(tiny, name, tmp_path, state="verifying", folder=folder).version)

    right = verified("with-reference", "r4")
    assert right.ok and right.report is not None
    counts = read_reference_counts(right.report["peft"])
    assert (counts.rows, counts.same, counts.tokens, counts.agreed) == (1, 1, 24, 24)
    assert counts.base_agreed < 24 and (counts.peft, counts.served) == ("float32", "float32")
    other = verified("of-another", "r16-rslora")
    assert not other.ok and other.refusal is not None and other.refusal.field == "reference.json"
    assert "must agree with PEFT on 95% of its tokens" in other.refusal.rule
    # Not zeros, which the intake finds: values that vanish beside the base's.
    nothing = verified("changes-nothing", None, scale=1e-15)
    assert not nothing.ok and nothing.refusal is not None and nothing.refusal.field == "adapter"
    assert "changes nothing: on 3 prompts" in nothing.refusal.rule


def test_a_replica_of_another_precision_serves_what_is_cleared_for_it_and_says_so(
    platform_url: str, tiny: Tiny, tmp_path: Path
) -> None:
    reference = register_base_directory(name="tiny", directory=tiny.model)
    with ReplicaProcess(platform_url, tiny.model, tmp_path / "state", dtype="int8").running() as replica:
        row = replica.row()
        checkpoint = BaseModel.objects.get(is_reference=False)
        assert row.base_fingerprint == checkpoint.fingerprint != reference.fingerprint
        sold = sell(tiny, "r4", tmp_path)
        cleared = Clearance.objects.create(version=sold.version, checkpoint=checkpoint)
        refused = completion(replica, sold.digest).send()
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "adapter_unavailable")
        assert not Release.objects.exists()
        Clearance.objects.filter(pk=cleared.pk).update(leave="given")
        ask = completion(replica, sold.digest)
        answer = ask.send()
        assert answer.status_code == 200, answer.text
        assert receipt_of(ask, answer.json()["intarsia"]["receipt"]).base == checkpoint.fingerprint


def _an_adapter_may_come_before_anybody_asks_for_it(replica: ReplicaProcess, digest: str) -> None:
    def resident() -> object:
        return list(administer(replica, "stats", {}).json()["resident"])

    assert administer(replica, "prefetch", {"digests": [digest]}, ticket_for="stats").status_code == 401
    assert administer(replica, "prefetch", {"digests": ["../x"]}).status_code == 400
    assert resident() == []
    assert administer(replica, "prefetch", {"digests": [digest]}).json() == {"hinted": 1}
    deadline = time.monotonic() + 60
    while resident() != [digest]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _a_ticket_is_good_for_one_body_one_replica_and_one_time(replica: ReplicaProcess) -> None:
    ask = completion(replica, None)
    assert ask.send().status_code == 200
    assert ask.send().status_code == 401
    assert completion(replica, None, replica_id=str(uuid.uuid4())).send().status_code == 401
    assert completion(replica, None, exp=int(time.time()) - 1).send().status_code == 401
    other = completion(replica, None)
    answer = other.send(body=other.body | {"max_tokens": 100})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_ticket")
    assert completion(replica, None, max_prompt_tokens=5).send().status_code == 400
    capped = completion(replica, None, max_tokens=3)
    assert receipt_of(capped, capped.send().json()["intarsia"]["receipt"]).completion_tokens == 3


def _a_refused_adapter_says_why_and_nothing_in_plaintext_reaches_the_disk(
    replica: ReplicaProcess, tiny: Tiny, tmp_path: Path
) -> None:
    good = sell(tiny, "r8-attention", tmp_path, state="verifying")
    assert replica_client.verify(good.version).ok
    Version.objects.filter(pk=good.version.pk).update(state=Version.State.PUBLISHED)
    assert completion(replica, good.digest).send().status_code == 200

    foreign = sell(tiny, "r4", tmp_path, state="verifying", fake_base=bytes(32))
    verdict = replica_client.verify(foreign.version)
    assert not verdict.ok and verdict.refusal is not None
    assert verdict.refusal.field == "package" and "base model" in verdict.refusal.message

    wrong_key = sell(tiny, "r20-patterns", tmp_path, state="verifying")
    DataKey.objects.filter(version=wrong_key.version).delete()
    wrong_key.dek = generate_key()
    services.accept_data_key(version=wrong_key.version, wrapped=wrap_for(wrong_key), digest=wrong_key.digest)
    verdict = replica_client.verify(wrong_key.version)
    assert not verdict.ok and verdict.refusal is not None and "commitment" in verdict.refusal.message

    secrets = [(tiny.adapters / name / "adapter_model.safetensors").read_bytes()[-4096:-4064] for name in ADAPTERS] + [
        b"target_modules",
        b"lora_A.weight",
        bytes(good.dek),
    ]
    files = [path for path in replica.state_dir.rglob("*") if path.is_file()]
    assert any(path.name == good.digest for path in files)
    for path in [*files, replica.state_dir.parent / "replica.log"]:
        content = path.read_bytes()
        assert not any(secret in content for secret in secrets), path
    package = replica.state_dir / "packages" / good.digest
    assert read_header(package).package_size == package.stat().st_size


def _receipt_of_the_next_boot(ask: Ask, before: Replica, after: Replica) -> Receipt | None:
    """Return the receipt of what a kill cut; None where nothing was cut, as the killed one's own receipt shows."""
    deadline = time.monotonic() + 60
    asked = [JournalKey(ask.claims["jti"], 3), JournalKey(ask.claims["jti"], 2)]
    while (states := journal_of(after, asked))[0].state != "final":
        assert time.monotonic() < deadline, states
        time.sleep(0.05)
    assert states[1].state == "unknown" and states[0].receipt is not None
    keys = {one.pk: bytes(one.receipt_public_key) for one in (before, after)}
    if verify_receipt(states[0].receipt, grant_of(ask), keys).finish_reason == "length":
        return None
    return verify_receipt(states[0].receipt, grant_of(ask), {after.pk: keys[after.pk]})


@pytest.mark.deep
def test_a_kill_in_the_middle_of_an_answer_ends_as_an_interrupted_receipt_of_the_next_boot(
    replica: ReplicaProcess, tiny: Tiny, tmp_path: Path
) -> None:
    receipt = None
    for _ in range(9):  # an answer that was complete before the kill is no case of this
        before = replica.row()
        ask = completion(replica, None, tokens=400, max_tokens=400, attempt=3)
        ask.body["stream"] = True
        with contextlib.suppress(httpx.HTTPError), ask.stream() as response:
            for count, _ in enumerate(response.iter_lines()):
                if count == 30:  # three lines per token
                    replica.kill()
        connection.close()
        replica.start()
        after = replica.row()
        assert after.pk != before.pk
        assert Replica.objects.get(pk=before.pk).gone_at is not None
        if receipt := _receipt_of_the_next_boot(ask, before, after):
            break
    assert receipt is not None
    assert receipt.finish_reason == "interrupted" and 0 < receipt.completion_tokens < 400
    assert receipt.prompt_tokens == 6

    ask = completion(replica, None)
    assert ask.send().status_code == 200
    assert replica.kill(signal.SIGTERM) == 0
    journal = UsageJournal(replica.state_dir / "journals" / replica.name)
    assert journal.lookup(ask.claims["jti"], 1)[0] == "final"
    assert journal.interrupted() == []
    journal.close()
