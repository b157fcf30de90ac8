"""From a ticket's admission to its receipt, without an engine: what is journaled, refused and answered when."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import body_sha256
from protocol.receipts import Grant, verify_receipt
from protocol.requests.bodies import EmbeddingBody
from protocol.tickets import TICKET_HEADER
from protocol.version import PROTOCOL_VERSION
from serving.core import Usage
from serving.http.admission import Admission, Ending, IncomingRequest
from serving.http.errors import ApiError
from serving.platform import predictions
from serving.platform.journal import UsageJournal
from serving.platform.leases import LeaseTable
from serving.platform.predictions import PredictionDesk
from serving.platform.receipts import ReceiptSigner
from serving.platform.tickets import TicketVerifier

BODY = b"{}"
DIGEST = "ab" * 32
ORGANIZATION = str(uuid.uuid4())


class Adapters:
    revoked: set[str]

    def is_revoked(self, digest: str) -> bool:
        return digest in self.revoked


class Engine:
    """The three things that the desk asks of an engine."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.adapters = Adapters()
        self.adapters.revoked = set()

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def readmit(self, digest: str) -> Future[None]:
        self.adapters.revoked.discard(digest)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class Setup:
    def __init__(self, folder: Path) -> None:
        self.key, self.replica_id = Ed25519PrivateKey.generate(), str(uuid.uuid4())
        self.tickets, self.leases, self.engine = TicketVerifier(), LeaseTable(), Engine()
        self.tickets.adopt(self.replica_id, {"k": self.key.public_key().public_bytes_raw()})
        self.journal, self.signer = UsageJournal(folder), ReceiptSigner("cd" * 32)
        self.desk = PredictionDesk(self.engine, self.tickets, self.leases, self.journal, self.signer)  # type: ignore[arg-type]

    def ticket(self, **claims: Any) -> str:
        now = int(time.time())
        payload = {
            "iss": "intarsia",
            "aud": "serving",
            "protocol_version": PROTOCOL_VERSION,
            "action": "predict",
            "jti": str(uuid.uuid4()),
            "iat": now,
            "exp": now + 60,
            "body_sha256": body_sha256(BODY),
            "replica_id": self.replica_id,
            "organization_id": ORGANIZATION,
            "adapter": DIGEST,
            "cache_scope": "s",
            "max_prompt_tokens": 5,
            "max_tokens": 7,
        }
        return jwt.encode(payload | claims, self.key, algorithm="EdDSA", headers={"kid": "k"})

    def authorize(self, ticket: str) -> Admission:
        request = IncomingRequest("/v1/completions", {TICKET_HEADER: ticket}, BODY, None)  # type: ignore[arg-type]
        return asyncio.run(self.desk.authorize(request))

    def claims(self, answer: dict[str, Any] | None) -> dict[str, Any]:
        assert answer is not None
        found: dict[str, Any] = jwt.decode(answer["receipt"], options={"verify_signature": False})
        return found

    def finish(self, jti: str, tokens: int, reason: str) -> dict[str, Any] | None:
        return asyncio.run(self.desk.on_finish(jti, Usage(5, tokens, 2), reason))


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.journal.close()


def refused(setup: Setup, ticket: str) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as error:
        setup.authorize(ticket)
    return error.value.status, error.value.code


def test_an_admission_carries_what_the_ticket_grants(setup: Setup) -> None:
    began = time.monotonic()
    admission = setup.authorize(setup.ticket(jti="00000000-0000-4000-8000-000000000001", cache_scope="acme-1"))
    assert admission.request_id == "00000000-0000-4000-8000-000000000001"
    assert (admission.tenant, admission.cache_scope, admission.adapter.digest) == (ORGANIZATION, "acme-1", DIGEST)
    assert (admission.max_prompt_tokens, admission.max_tokens) == (5, 7)
    assert admission.deadline is not None and began + 59 <= admission.deadline <= time.monotonic() + 60
    assert (admission.latency_class, admission.stop_at_grant) == ("standard", False)
    paid = setup.authorize(setup.ticket(latency_class="interactive", stop_at_grant=True))
    assert (paid.latency_class, paid.stop_at_grant) == ("interactive", True)
    assert setup.claims(setup.finish(paid.request_id, 7, "budget"))["latency_class"] == "interactive"
    assert admission.weight == 1.0 and setup.authorize(setup.ticket(weight=2.5)).weight == 2.5


@pytest.mark.parametrize(
    "claims",
    [
        {"max_prompt_tokens": 0},
        {"organization_id": None},
        {"cache_scope": ""},
        {"adapter": "../x"},
        {"weight": 0},
        {"weight": 101},
        {"latency_class": "now"},
        {"stop_at_grant": "yes"},
    ],
)
def test_a_ticket_that_grants_nothing_is_refused(setup: Setup, claims: dict[str, Any]) -> None:
    assert refused(setup, setup.ticket(**claims)) == (401, "invalid_ticket")


def test_while_the_journal_cannot_be_written_tickets_are_refused_and_not_spent(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = setup.ticket()
    monkeypatch.setattr(setup.journal, "_accepting", False)
    assert refused(setup, ticket) == (503, "journal_unavailable")
    monkeypatch.setattr(setup.journal, "_accepting", True)
    setup.authorize(ticket)


def test_a_withdrawn_adapter_is_refused_and_one_whose_lease_ran_out_is_let_in_again(setup: Setup) -> None:
    setup.engine.adapters.revoked = {DIGEST}
    setup.authorize(setup.ticket())
    assert not setup.engine.adapters.is_revoked(DIGEST)
    setup.leases.revoke([DIGEST])
    setup.engine.adapters.revoked = {DIGEST}
    assert refused(setup, setup.ticket()) == (403, "adapter_revoked")
    assert setup.engine.adapters.is_revoked(DIGEST)


def test_a_receipt_is_on_the_disk_before_it_is_handed_over(setup: Setup, tmp_path: Path) -> None:
    jti = setup.authorize(setup.ticket()).request_id
    assert setup.desk.state(jti, 1) == ("running", None)
    setup.desk.on_progress(jti, Usage(5, 1, 2))
    answer = setup.finish(jti, 3, "stop")
    assert answer is not None and answer["receipt"].encode() in (tmp_path / "00000001.journal").read_bytes()
    assert setup.desk.state(jti, 1) == ("final", answer["receipt"])
    assert jwt.get_unverified_header(answer["receipt"])["kid"] == setup.replica_id


@pytest.mark.parametrize("reason", ["error", "revoked", "interrupted"])
def test_a_prediction_refused_before_its_first_token_leaves_no_receipt(setup: Setup, reason: str) -> None:
    jti = setup.authorize(setup.ticket()).request_id
    assert setup.finish(jti, 0, reason) is None
    assert setup.desk.state(jti, 1) == ("unknown", None)


@pytest.mark.parametrize(("tokens", "reason"), [(3, "error"), (3, "revoked"), (0, "cancelled"), (2, "cancelled")])
def test_a_prediction_that_ended_early_after_work_was_done_has_a_receipt(
    setup: Setup, tokens: int, reason: str
) -> None:
    jti = setup.authorize(setup.ticket()).request_id
    answer = setup.finish(jti, tokens, reason)
    assert answer is not None
    claims = jwt.decode(answer["receipt"], options={"verify_signature": False})
    assert (claims["completion_tokens"], claims["finish_reason"]) == (tokens, reason)


def test_an_answer_does_not_wait_for_ever_for_a_disk_that_takes_nothing(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "JOURNAL_SECONDS", 0.05)
    monkeypatch.setattr(setup.journal, "finish", lambda jti, attempt, receipt: Future())
    jti = setup.authorize(setup.ticket()).request_id
    assert setup.finish(jti, 3, "stop") is None


def test_a_prediction_refused_between_desk_and_engine_is_forgotten_when_its_ticket_expires(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    jti = setup.authorize(setup.ticket()).request_id
    monkeypatch.setattr(predictions.time, "time", lambda: time.monotonic() + 4e9)
    assert setup.desk.state(jti, 1) == ("unknown", None)


async def test_embeddings_are_metered_by_their_prompt_tokens(setup: Setup) -> None:
    body = EmbeddingBody(model="m", input="a")
    request = IncomingRequest("/v1/embeddings", {TICKET_HEADER: setup.ticket()}, BODY, body)
    admission = await setup.desk.authorize(request)
    answer = await setup.desk.on_finish(admission.request_id, Usage(7, 0, 4), "stop")
    claims = setup.claims(answer)
    assert (claims["prompt_tokens"], claims["cached_tokens"], claims["completion_tokens"]) == (7, 4, 0)


def test_a_receipt_names_its_attempt_and_the_replica_of_its_ticket(setup: Setup) -> None:
    jti = setup.authorize(setup.ticket(attempt=3)).request_id
    answer = setup.finish(jti, 3, "stop")
    claims = setup.claims(answer)
    assert (claims["attempt"], claims["replica_id"]) == (3, setup.replica_id)
    assert answer is not None and setup.desk.state(jti, 3) == ("final", answer["receipt"])
    assert setup.desk.state(jti, 2) == ("unknown", None)


async def test_a_receipt_says_how_long_a_request_waited_and_whether_its_calls_fit(setup: Setup) -> None:
    found = []
    for fit in (True, False, None):
        request = IncomingRequest("/v1/completions", {TICKET_HEADER: setup.ticket()}, BODY, None)  # type: ignore[arg-type]
        jti = (await setup.desk.authorize(request)).request_id
        ending = Ending(queue_seconds=3600.0 if fit else 0.0, arguments_fit=fit)
        claims = setup.claims(await setup.desk.on_finish(jti, Usage(5, 1, 2), "stop", ending))
        assert claims["queue_ms"] <= claims["duration_ms"]  # or no gateway would take it
        found.append(claims.get("tool_arguments"))
    assert found == ["valid", "invalid", None]


def test_a_prompt_that_is_only_scored_has_a_receipt(setup: Setup) -> None:
    admission = setup.authorize(setup.ticket(max_tokens=0))
    assert admission.max_tokens == 0
    claims = setup.claims(setup.finish(admission.request_id, 0, "length"))
    assert (claims["prompt_tokens"], claims["completion_tokens"], claims["finish_reason"]) == (5, 0, "length")


@pytest.mark.parametrize(("delivered", "counted"), [(0, 0), (2, 2), (6, 6), (100, 6)])
def test_the_receipt_of_a_cancelled_attempt_counts_no_more_than_was_delivered(
    setup: Setup, delivered: int, counted: int
) -> None:
    admission = setup.authorize(setup.ticket(attempt=2))
    jti = admission.request_id
    setup.desk.on_progress(jti, Usage(5, 6, 2))
    setup.desk.cancel(jti, 1, 0)
    assert not admission.stopped.is_set() and not setup.engine.cancelled, "another attempt was stopped"
    setup.desk.cancel(jti, 2, delivered)
    assert admission.stopped.is_set() and setup.engine.cancelled == [jti]
    setup.desk.cancel(jti, 2, delivered + 50)  # a later word does not raise the bound
    assert setup.claims(setup.finish(jti, 6, "cancelled"))["completion_tokens"] == counted


def test_an_attempt_cancelled_before_it_comes_is_refused_when_it_comes(setup: Setup) -> None:
    ticket, jti = setup.ticket(jti="00000000-0000-4000-8000-000000000002"), "00000000-0000-4000-8000-000000000002"
    setup.desk.cancel(jti, 1, 0)
    assert refused(setup, ticket) == (401, "invalid_ticket")
    assert setup.desk.state(jti, 1) == ("unknown", None)


def test_the_next_boot_signs_for_the_attempt_and_replica_of_the_ticket_and_no_more_than_was_delivered(
    setup: Setup, tmp_path: Path
) -> None:
    cancelled = setup.authorize(setup.ticket(attempt=4, latency_class="batch")).request_id
    running = setup.authorize(setup.ticket(attempt=5, latency_class="batch")).request_id
    setup.desk.cancel(cancelled, 4, 2)
    for jti in (cancelled, running):
        setup.desk.on_progress(jti, Usage(5, 6, 2))
    setup.journal.close()  # with both still running, as after a kill: only checkpoints are on the disk
    journal, signer, later = UsageJournal(tmp_path), ReceiptSigner("cd" * 32), str(uuid.uuid4())
    desk = PredictionDesk(setup.engine, setup.tickets, setup.leases, journal, signer)  # type: ignore[arg-type]
    desk.settle_interrupted(later)
    journal.close()
    journal = UsageJournal(tmp_path)
    for jti, attempt, counted in ((cancelled, 4, 2), (running, 5, 6)):
        state, token = journal.lookup(jti, attempt)
        assert state == "final" and token is not None
        grant = Grant(uuid.UUID(jti), attempt, uuid.UUID(setup.replica_id), DIGEST, "cd" * 32, 5, 7, "batch")
        receipt = verify_receipt(token, grant, {uuid.UUID(later): signer.public_bytes()})
        assert (receipt.completion_tokens, receipt.finish_reason) == (counted, "interrupted")
    journal.close()


def test_another_attempt_of_an_interrupted_prediction_has_its_own_receipt(setup: Setup, tmp_path: Path) -> None:
    first = setup.authorize(setup.ticket(attempt=1)).request_id
    setup.finish(first, 2, "cancelled")
    setup.journal.close()
    again = Setup(tmp_path)
    assert again.authorize(again.ticket(jti=first, attempt=2)).request_id == first
    assert again.desk.state(first, 2)[0] == "running" and again.desk.state(first, 1)[0] == "final"
    assert again.claims(again.finish(first, 5, "stop"))["attempt"] == 2
    assert again.desk.state(first, 2)[0] == again.desk.state(first, 1)[0] == "final"
    again.journal.close()


def test_a_stream_gets_checkpoints_from_its_first_token_on_which_settle_as_receipts_do(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    jti = str(uuid.uuid4())
    setup.authorize(setup.ticket(jti=jti))

    def checkpoint(shown: int) -> str | None:
        return setup.desk.checkpoint(jti, Usage(5, shown, 2), shown)

    monkeypatch.setattr(predictions, "CHECKPOINT_SECONDS", 3600.0)
    assert checkpoint(0) is None, "nothing was shown yet"
    first = checkpoint(1)
    assert first is not None and checkpoint(2) is None, "the next is due after 16 tokens"
    monkeypatch.setattr(predictions, "CHECKPOINT_SECONDS", 0.0)
    later = checkpoint(3)
    assert later is not None and checkpoint(3) is None, "nothing came since"
    grant = Grant(
        prediction_id=uuid.UUID(jti),
        attempt=1,
        replica_id=uuid.UUID(setup.replica_id),
        adapter=DIGEST,
        base="cd" * 32,
        max_prompt_tokens=5,
        max_tokens=7,
        latency_class="standard",
    )
    keys = {uuid.UUID(setup.replica_id): setup.signer.public_bytes()}
    for token, tokens in ((first, 1), (later, 3)):
        receipt = verify_receipt(token, grant, keys)
        assert (receipt.completion_tokens, receipt.finish_reason) == (tokens, "interrupted")
    setup.desk.cancel(jti, 1, 3)
    assert checkpoint(5) is None, "no more than what was delivered counts"
    assert setup.desk.checkpoint(str(uuid.uuid4()), Usage(5, 1, 0), 1) is None
