"""The contents of a receipt: what the platform states of one charge, of its corrections, and of a day's tree.

A statement is the JSON of these fields in this order, so that the same charge always has the same bytes. A version
never gains a field: another version gets its own struct.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from protocol.latency import LatencyClass
from protocol.messages import Attempt, Bytes32, Id
from protocol.proofs.errors import ProofRejected
from protocol.receipts import Count

BPS = 10_000  # basis points of the whole
NANO_PER_FLAT = 1_000  # pico-dollars in a nano-dollar

Amount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # nano-dollars
Micros = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # unix microseconds
Text = Annotated[str, msgspec.Meta(max_length=300)]
Day = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")]


class ChargePrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price that the prediction was promised: micro-dollars per million tokens, and nano-dollars per prediction."""

    input_micro_usd_per_mtok: Amount
    cached_input_micro_usd_per_mtok: Amount
    output_micro_usd_per_mtok: Amount
    per_prediction_nano_usd: Amount


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of the split. `payee` is an organization, null is the platform."""

    payee: Id | None
    basis_points: Annotated[int, msgspec.Meta(ge=0, le=BPS)]
    reason: Text
    nano_usd: Amount


class Charge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One charged prediction. Organizations are ids: a receipt names no person."""

    version: Literal[1]
    prediction_id: Id
    attempt: Attempt
    organization_id: Id
    model: Text
    model_id: Id
    model_version_id: Id | None
    request_sha256: Bytes32  # of the request's body
    placed_at: Micros
    charged_at: Micros
    # The price and the sum.
    latency_class: LatencyClass
    class_bps: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]  # 10,000 is the list price
    price: ChargePrice
    prompt_tokens: Count
    cached_tokens: Count
    completion_tokens: Count  # charged: at most what was delivered
    gross_nano_usd: Amount
    allowance_nano_usd: Amount
    held_nano_usd: Amount  # the most that it could have cost
    cost_nano_usd: Amount
    split: Annotated[tuple[Share, ...], msgspec.Meta(max_length=100)]
    # The grant of the ticket, and the replica's own receipt for it.
    replica_id: Id
    adapter: Text | None
    base: Text
    max_prompt_tokens: Count
    max_completion_tokens: Count
    signer_id: Id | None
    signer_key: Bytes32 | None
    replica_receipt: Annotated[str, msgspec.Meta(max_length=4096)]

    def payload(self) -> bytes:
        """Return the bytes that are signed, and hashed as a leaf."""
        return msgspec.json.encode(self)


class Correction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a charge that was given back."""

    version: Literal[1]
    prediction_id: Id
    correction: Text
    amount_nano_usd: Amount
    reason: Text
    corrected_at: Micros


class DayHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The root of a day's tree when it had `size` leaves.

    Heads are numbered in the order of publication, and each names the hash of the one before it.
    """

    version: Literal[1]
    sequence: Count
    previous: Bytes32  # SHA-256 of the payload of the head before; 32 zero bytes for the first
    day: Day
    size: Count
    root: Bytes32


def check_sum(charge: Charge) -> None:
    """Compute cost and shares from tokens, price, class, allowance and split; raises ProofRejected if they differ."""
    if charge.cached_tokens > charge.prompt_tokens:
        raise ProofRejected("cost", "more prompt tokens are cached than there are")
    price = charge.price
    pico = (
        (charge.prompt_tokens - charge.cached_tokens) * price.input_micro_usd_per_mtok
        + charge.cached_tokens * price.cached_input_micro_usd_per_mtok
        + charge.completion_tokens * price.output_micro_usd_per_mtok
        + price.per_prediction_nano_usd * NANO_PER_FLAT
    )
    gross = -(-pico * charge.class_bps // (BPS * NANO_PER_FLAT))  # rounded up, once
    if charge.gross_nano_usd != gross:
        raise ProofRejected("cost", f"the tokens cost {gross} nano-dollars at this price, not {charge.gross_nano_usd}")
    cost = min(charge.held_nano_usd, gross - min(charge.allowance_nano_usd, gross))
    if charge.cost_nano_usd != cost:
        raise ProofRejected("cost", f"{cost} nano-dollars were to be charged, not {charge.cost_nano_usd}")
    points = [part.basis_points for part in charge.split]
    if sum(points) != BPS or [part.payee for part in charge.split].count(None) > 1:
        raise ProofRejected("split", "the split does not make a whole")
    payees = [part for part in charge.split if part.payee is not None]
    due = iter(shares_of(charge.cost_nano_usd, [part.basis_points for part in payees]))
    rest = charge.cost_nano_usd
    for part in payees:
        share = next(due)
        rest -= share
        if part.nano_usd != share:
            raise ProofRejected("split", f"{part.payee} is due {share} nano-dollars, not {part.nano_usd}")
    if sum(part.nano_usd for part in charge.split if part.payee is None) != rest:
        raise ProofRejected("split", f"the platform is due {rest} nano-dollars")


def shares_of(cost: int, basis_points: list[int]) -> list[int]:
    """Divide a cost among payees, in nano-dollars; what is left over is the platform's.

    Together they get their basis points of the cost, rounded down; among them the largest remainder decides, ties by
    place.
    """
    shares = [cost * points // BPS for points in basis_points]
    left = cost * sum(basis_points) // BPS - sum(shares)
    by_remainder = sorted(range(len(shares)), key=lambda place: (-(cost * basis_points[place] % BPS), place))
    for place in by_remainder[:left]:
        shares[place] += 1
    return shares
