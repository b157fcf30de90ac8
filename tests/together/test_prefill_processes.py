"""Two real replica processes, one for prompts and one for answers, enrolled with the platform."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from marketplace.vault.hand_over import hand_over_conversations
from marketplace.vault.models import Replica
from marketplace.vault.signing import TicketSigner, load_ticket_signer
from protocol.encoding import encode_base64url
from protocol.pulls import PULL_HEADER, pull_ticket
from protocol.receipts import Grant, Receipt, verify_receipt
from protocol.tickets import TICKET_HEADER, prediction_ticket
from tests.marketplace.vault.factories import want
from tests.together.replica_process import ReplicaProcess, free_port, sell
from tests.together.tiny import Tiny

pytestmark = [pytest.mark.deep, pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]
BODY = {
    "model": "acme/any",
    "prompt": [3 + (17 * i + i * i) % 250 for i in range(150)],
    "max_tokens": 8,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
}


def post(
    replica: Replica, signer: TicketSigner, ids: dict[str, Any], pull: str | None = None, **claims: Any
) -> httpx.Response:
    raw = json.dumps(BODY).encode()
    if ids["adapter"] is not None:
        want(replica, ids["adapter"])
    ticket = prediction_ticket(
        attempt=1,
        replica_id=replica.pk,
        body=raw,
        deadline=time.time() + 60,
        max_prompt_tokens=200,
        latency_class="standard",
        stop_at_grant=False,
        **ids,
        **{"max_tokens": 8} | claims,
    )
    headers = {TICKET_HEADER: signer.sign(ticket), "content-type": "application/json"}
    headers |= {} if pull is None else {PULL_HEADER: pull}
    return httpx.post(f"{replica.url}/v1/completions", content=raw, headers=headers, timeout=30, trust_env=False)


def receipt(answer: httpx.Response, replica: Replica, ids: dict[str, Any], most: int) -> Receipt:
    assert answer.status_code == 200, answer.text
    grant = Grant(
        prediction_id=ids["prediction_id"],
        attempt=1,
        replica_id=replica.pk,
        adapter=ids["adapter"],
        base=replica.base_fingerprint,
        max_prompt_tokens=200,
        max_tokens=most,
        latency_class="standard",
    )
    return verify_receipt(answer.json()["intarsia"]["receipt"], grant, {replica.pk: bytes(replica.receipt_public_key)})


def figure(replica: Replica, name: str) -> float:
    """A metric of a replica now."""
    lines = httpx.get(f"{replica.url}/metrics", trust_env=False).text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"intarsia_{name} ")))


def test_a_prompt_is_computed_in_one_process_and_answered_in_another(
    platform_url: str, tiny: Tiny, tmp_path: Path
) -> None:
    transfer = f"https://127.0.0.1:{free_port()}"
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    first = ReplicaProcess(platform_url, tiny.model, tmp_path / "one" / "state", "prompts")
    first.flags = ["--role", "prefill", "--transfer-url", transfer]
    second = ReplicaProcess(platform_url, tiny.model, tmp_path / "other" / "state", "answers")
    second.flags = ["--role", "decode"]
    with first.running(), second.running():
        prompts, answers = first.row(), second.row()
        assert (prompts.role, prompts.transfer_url) == ("prefill", transfer)
        assert (answers.role, answers.transfer_url) == ("decode", "")
        adapter, signer = sell(tiny, "r4", tmp_path).version.package_digest, load_ticket_signer()
        ids: dict[str, Any] = {"prediction_id": uuid.uuid4(), "organization_id": uuid.uuid4(), "adapter": adapter}

        # Each takes its own part alone, and the refusal of one spends nothing of the other's.
        assert post(prompts, signer, ids).status_code == 401
        assert post(answers, signer, ids, action="prefill", max_tokens=0).status_code == 401
        assert post(prompts, signer, ids, action="prefill", max_tokens=8).status_code == 401

        ids["prediction_id"] = uuid.uuid4()
        alone = post(prompts, signer, ids, action="prefill", max_tokens=0)
        done = receipt(alone, prompts, ids, most=0)
        assert (done.prompt_tokens, done.cached_tokens, done.completion_tokens) == (150, 0, 0)
        pull = signer.sign_pull(
            pull_ticket(
                jti=ids["prediction_id"],
                attempt=1,
                source_id=prompts.pk,
                source_url=prompts.transfer_url,
                source_key=encode_base64url(bytes(prompts.receipt_public_key)),
                reader_id=answers.pk,
                reader_key=encode_base64url(bytes(answers.receipt_public_key)),
                adapter=adapter,
                cache_scope=str(ids["organization_id"]),
            )
        )
        answer = post(answers, signer, ids, pull, cached_tokens=done.cached_tokens)
        charged = receipt(answer, answers, ids, most=8)
        assert (charged.prompt_tokens, charged.cached_tokens, charged.completion_tokens) == (150, 0, 8)
        assert (figure(answers, "kv_blocks_pulled"), figure(answers, "kv_pulls_failed")) == (9.0, 0.0)

        # Another tenant computes the same prompt here, alone: the same tokens.
        alone_ids = ids | {"prediction_id": uuid.uuid4(), "organization_id": uuid.uuid4()}
        by_one = post(answers, signer, alone_ids)
        assert by_one.json()["choices"][0]["token_ids"] == answer.json()["choices"][0]["token_ids"]

        # The pull of another prediction is refused, and the prompt is found here by now: charged as cached.
        again = ids | {"prediction_id": uuid.uuid4()}
        refused = post(answers, signer, again, pull, cached_tokens=0)
        assert receipt(refused, answers, again, most=8).cached_tokens == 144
        assert figure(answers, "kv_pulls_failed") == 1.0

        # A replica that drains hands its conversations to their next home, which pulls them.
        asked = ids | {"prediction_id": uuid.uuid4(), "organization_id": uuid.uuid4()}
        receipt(post(prompts, signer, asked, action="prefill", max_tokens=0), prompts, asked, most=0)
        before = figure(answers, "kv_blocks_pulled")
        assert hand_over_conversations("prompts") == 2
        while figure(answers, "kv_blocks_pulled") < before + 9:
            assert second.ready()
        found = asked | {"prediction_id": uuid.uuid4()}
        assert receipt(post(answers, signer, found), answers, found, most=8).cached_tokens == 144
