"""The audit of a chaos run: every prediction by its id, as in any fault run, and what callers may expect of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.end_to_end.chaos.traffic import Timed
from tests.end_to_end.faults.audit import Outage, audit
from tests.end_to_end.faults.clerk import Errands
from tests.end_to_end.faults.rows import Rows

NEW_CALL_SECONDS = 3.0  # to the first token of a call that is made while a replica is gone
TOLD_SECONDS = 15.0  # until the caller of a cut stream hears of it
SETTLED_SECONDS = 15.0  # until its hold is closed, whether or not the replica ever comes back
SWEPT_SECONDS = 60.0  # the same after the gateway died, which alone knew what was delivered
_OF_GATEWAY = ("gateway killed", "gateway restarted")
_MAY_COME = {"replica_lost"}  # incidents that no money is behind


@dataclass
class Fault:
    """Something that went wrong from `began` to `ended`, unix seconds; `replica` is a name, None for the platform."""

    kind: str
    replica: str | None
    began: float
    ended: float


@dataclass
class ChaosVerdict:
    """`faults` must be empty; times are the worst, in seconds."""

    faults: list[str] = field(default_factory=list)
    predictions: int = 0
    charged: int = 0
    free: int = 0
    moved: int = 0  # predictions that a second replica answered
    cut: int = 0  # streams that ended early
    refused: int = 0  # calls that got nothing, each while the gateway was away
    undercharged_tokens: int = 0  # of cut streams: delivered, and not on the last checkpoint
    first_token: list[float] = field(default_factory=list)  # of calls that were made during a fault of a replica
    told: float = 0.0
    settled: float = 0.0


def audit_chaos(rows: Rows, timed: Sequence[Timed], faults: Sequence[Fault]) -> ChaosVerdict:
    """Compare the books and the clock with everything that callers were given."""
    outages = [Outage("gateway", fault.began, fault.ended) for fault in faults if fault.kind in _OF_GATEWAY]
    outages += [Outage("replica", fault.began, fault.ended) for fault in faults if fault.replica is not None]
    incidents = [row for row in rows.incidents if row["kind"] not in _MAY_COME]
    books = audit(
        replace(rows, incidents=incidents),
        [one.call for one in timed],
        outages,
        errands=Errands(),
        transfers=[],
        close_seconds=SWEPT_SECONDS,
        payouts=False,
    )
    verdict = ChaosVerdict(books.faults, books.predictions, books.charged, books.free)
    verdict.moved = sum(row["attempt"] > 1 and row["state"] == "settled" for row in rows.holds)
    charged = {row["id"]: row["completion"] for row in rows.usage}
    for one in timed:
        _check_call(one, faults, verdict)
        if not one.whole and one.tokens:
            prediction = one.call.given[-1].prediction_id
            verdict.undercharged_tokens += one.tokens - charged.get(str(prediction), 0)
    by_hash = {one.call.body_hash: one for one in timed}
    for hold in rows.holds:
        _check_closing(hold, by_hash.get(hold["body_hash"]), faults, verdict)
    return verdict


def _check_call(one: Timed, faults: Sequence[Fault], verdict: ChaosVerdict) -> None:
    call, say = one.call, verdict.faults.append
    hit_gateway = _during(call.started, call.ended, faults, gateway=True)
    if not one.whole:
        if one.tokens:
            verdict.cut += 1
        else:
            verdict.refused += 1
        if not hit_gateway and not one.tokens:
            say(f"a {call.kind} call got nothing ({call.outcome}), {_near(call.started, faults)}")
        causes = [fault.began for fault in faults if fault.began <= call.ended]
        told = call.ended - max([call.started, *causes])
        verdict.told = max(verdict.told, told)
        if told > TOLD_SECONDS:
            say(f"a {call.kind} call heard of its end after {told:.1f} s, {_near(call.started, faults)}")
    if not hit_gateway and one.first_token is not None and _during(call.started, call.started, faults, gateway=False):
        seconds = one.first_token - call.started
        # A whole answer's first token is its last: only the short ones show how soon a call is taken.
        if one.stream or call.kind == "probe":
            verdict.first_token.append(seconds)
            if seconds > NEW_CALL_SECONDS:
                say(f"a new {call.kind} call had its first token after {seconds:.1f} s, {_near(call.started, faults)}")


def _check_closing(hold: dict[str, Any], one: Timed | None, faults: Sequence[Fault], verdict: ChaosVerdict) -> None:
    if one is None or hold["closed"] is None or _during(one.call.started, one.call.ended, faults, gateway=True):
        return
    causes = [fault.began for fault in faults if fault.began <= one.call.ended]
    seconds = hold["closed"] - max([one.call.ended, *causes])
    verdict.settled = max(verdict.settled, seconds)
    if seconds > SETTLED_SECONDS:
        verdict.faults.append(f"{hold['id']}: closed after {seconds:.1f} s, {_near(one.call.started, faults)}")


def _during(began: float, ended: float, faults: Sequence[Fault], *, gateway: bool) -> bool:
    """Return whether the time touches a fault of the gateway, or of anything else."""
    return any(
        fault.began <= ended and fault.ended >= began for fault in faults if (fault.kind in _OF_GATEWAY) == gateway
    )


def _near(at: float, faults: Sequence[Fault]) -> str:
    """Return in words the fault that came last before a time."""
    before = [fault for fault in faults if fault.began <= at + 3.0]
    if not before:
        return "before any fault"
    last = before[-1]
    return f"{at - last.began:+.1f} s from {last.kind} of {last.replica or 'the platform'}"
