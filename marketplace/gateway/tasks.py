"""The sweeper: it closes the holds that their gateway left open, within a minute, whatever died (docs/ledger.md).

A gateway's verdict says how much of an answer was delivered; without one nothing shows a delivery, and the prediction
is free. With one, the journal of the replica that had the attempt is asked for the receipt. Times are the database's.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from celery import shared_task
from django.db import connection

from billing.errors import BillingError, HoldReleased
from billing.models import Hold
from billing.pricing import TokenUsage
from billing.selectors import HoldToSweep, holds_to_sweep
from billing.services import release_hold_sync, settle_hold_sync
from marketplace.gateway import proofs
from marketplace.gateway.journals import ask_journals
from marketplace.gateway.settlement import Signers, grant_of, refuse_receipt_sync, signers_of
from marketplace.vault.models import Replica
from marketplace.vault.replica_client import ReplicaAddress
from marketplace.vault.signing import load_ticket_signer
from protocol.admin import JournalKey, JournalState
from protocol.receipts import ReceiptRejected, verify_receipt

logger = logging.getLogger(__name__)

BATCH = 5_000  # holds of one round; rounds come every 5 s
Outcome = Literal["settled", "released", "refused", "left"]


@dataclass(frozen=True, slots=True)
class Decision:
    """How to close a hold: `settle` by the receipt in `text`, `release` for the reason in `text`, or `leave` it."""

    hold: Hold
    action: Literal["settle", "release", "leave"]
    text: str = ""


@shared_task(name="marketplace.gateway.tasks.sweep_open_holds")
def sweep_open_holds() -> dict[str, int]:
    """Close holds that their gateway did not; return how many were settled, released, refused, and left for later."""
    counts: Counter[str] = Counter(settled=0, released=0, refused=0, left=0)
    holds = holds_to_sweep(limit=BATCH)
    signers = signers_of(one.hold.replica_id for one in holds if one.hold.replica_id is not None)
    for decision in _decisions(holds):
        counts[_carry_out(decision, signers)] += 1
    return dict(counts)


def close_by_journal(words: Iterable[tuple[HoldToSweep, JournalState]]) -> None:
    """Close holds by what a journal says of them, as the sweeper does."""
    said = list(words)
    signers = signers_of(one.hold.replica_id for one, _ in said if one.hold.replica_id is not None)
    for one, state in said:
        _carry_out(decide(one, state, gone=False) if _owed(one) else _without_a_word(one), signers)


def _owed(one: HoldToSweep) -> bool:
    """Return whether a hold waits for its replica's word: it has a verdict, and its answer is kept if it must."""
    return one.hold.delivered_tokens is not None and not one.unkept


def _without_a_word(one: HoldToSweep) -> Decision:
    unkept = one.hold.delivered_tokens is not None
    return Decision(one.hold, "release", "its answer is not kept" if unkept else "nothing shows a delivery")


@shared_task(name="marketplace.gateway.tasks.audit_receipts")
def audit_receipts() -> int:
    """Audit the charges since the last audit against their receipts; return how many contradict theirs."""
    return proofs.audit_new_charges()


@shared_task(name="marketplace.gateway.tasks.audit_all_receipts")
def audit_all_receipts() -> None:
    """Let the next audit begin at the first charge again."""
    proofs.forget_progress()


def decide(one: HoldToSweep, state: JournalState | None, *, gone: bool) -> Decision:
    """Decide about a hold with a verdict. `state`: the journal's answer, None from a replica that did not answer, which
    is `gone` when the platform has given up on it."""
    if state is not None and state.state == "final":
        return Decision(one.hold, "settle", state.receipt or "")
    if state is not None and state.state == "unknown":
        return Decision(one.hold, "release", "its replica does not know of it")
    if one.overdue or (state is None and gone):
        return Decision(one.hold, "release", "its replica gave no receipt in time")
    return Decision(one.hold, "leave")


def _decisions(holds: list[HoldToSweep]) -> Iterator[Decision]:
    """Decide about every hold: at once where no replica must be asked, then in the order in which replicas answer."""
    boots = _newest_boots(holds)
    asked: dict[UUID, HoldToSweep] = {}
    questions: dict[ReplicaAddress, list[JournalKey]] = {}
    for one in holds:
        boot = boots.get(one.hold.replica_id) if one.hold.replica_id is not None else None
        if not _owed(one):
            yield _without_a_word(one)
        elif boot is None:
            yield Decision(one.hold, "release", "its replica is unknown")
        elif boot.retired_at is not None:
            yield Decision(one.hold, "release", "its replica has left for good")
        elif boot.lost_at is not None:
            yield Decision(one.hold, "release", "its replica is lost")
        else:
            asked[one.hold.id] = one
            questions.setdefault(ReplicaAddress.of(boot), []).append(JournalKey(str(one.hold.id), one.hold.attempt))
    if not asked:
        return
    gone = {boot.pk for boot in boots.values() if boot.gone_at is not None}
    for answer in ask_journals(questions, load_ticket_signer()):
        for number, key in enumerate(answer.keys):
            state = None if answer.states is None else answer.states[number]
            yield decide(asked[UUID(key.jti)], state, gone=answer.replica_id in gone)


def _newest_boots(holds: list[HoldToSweep]) -> dict[UUID, Replica]:
    """Return for the replica of each hold the newest boot of its name: a journal is kept by name, across restarts."""
    replica_ids = {one.hold.replica_id for one in holds if one.hold.replica_id is not None}
    names = dict(Replica.objects.filter(pk__in=replica_ids).values_list("pk", "name"))
    newest = Replica.objects.filter(name__in=set(names.values())).order_by("name", "-registered_at").distinct("name")
    by_name = {boot.name: boot for boot in newest}
    return {replica_id: by_name[name] for replica_id, name in names.items()}


def _carry_out(decision: Decision, signers: Mapping[UUID, Signers]) -> Outcome:
    """Close one hold. Trouble with it is logged and leaves it for the next round; the others do not notice."""
    hold = decision.hold
    try:
        if decision.action == "settle":
            return _settle(hold, decision.text, signers.get(hold.replica_id, {}) if hold.replica_id else {})
        if decision.action == "release":
            release_hold_sync(prediction_id=hold.id, reason=decision.text)
            return "released"
    except Exception:
        logger.exception("hold %s was not closed", hold.id)
        if not connection.is_usable():
            raise  # the database is away: so are all others
    return "left"


def _settle(hold: Hold, token: str, signers: Signers) -> Outcome:
    grant = grant_of(hold)
    try:
        receipt = verify_receipt(token, grant, signers)
    except ReceiptRejected as rejection:
        logger.error("hold %s: receipt refused (%s): %s", hold.id, rejection.rule, rejection)
        refuse_receipt_sync(grant, token, rejection)
        return "refused"
    usage = TokenUsage(
        prompt_tokens=receipt.prompt_tokens,
        cached_tokens=receipt.cached_tokens,
        completion_tokens=receipt.completion_tokens,
    )
    try:
        settlement = settle_hold_sync(
            prediction_id=hold.id,
            attempt=grant.attempt,
            usage=usage,
            finish_reason=receipt.finish_reason,
            receipt=token,
            replica_id=grant.replica_id,
        )
    except HoldReleased:  # closed meanwhile, in the customer's favour
        return "released"
    except BillingError as error:
        logger.error("hold %s was not settled: %s", hold.id, error)
        return "left"
    return "settled" if settlement.cost else "released"
