"""Refunds that staff give: what is left of a prediction's charge, or unspent credit of a top-up, each with a reason.

The books decide what can go back (`billing.services`, `billing.refunds`); the customer's audit log says who and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from billing.models import Hold, TopUp, TopUpRefund, Usage
from billing.refunds import refund_freezes, refund_top_up, refundable_cents
from billing.selectors import usage_row
from billing.services import correct_prediction
from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import InvalidInput, NotFound
from marketplace.accounts.models import Organization, User
from marketplace.alerts.services import tell
from protocol.money import usd

MAX_REASON = 64  # as the books keep it
REFUNDED = "wallet.refunded"


@dataclass(frozen=True, slots=True)
class FoundPrediction:
    """A prediction that was paid for; `left_nano_usd` is what can still go back."""

    organization: Organization
    usage: Usage

    @property
    def left_nano_usd(self) -> int:
        left: int = self.usage.charged_nano_usd  # type: ignore[attr-defined]
        return left


@dataclass(frozen=True, slots=True)
class FoundTopUp:
    """A top-up; `left_cents` of its credit can go back to the card, unless `freezes` say why not."""

    top_up: TopUp
    left_cents: int
    freezes: list[str]
    refunds: list[TopUpRefund]


def find(thing_id: UUID) -> FoundPrediction | FoundTopUp | None:
    """Return the prediction or the top-up of this id. For staff only."""
    top_up = TopUp.objects.select_related("organization").filter(pk=thing_id).first()
    if top_up is not None:
        refunds = list(top_up.refunds.order_by("-created_at")[:50])
        return FoundTopUp(top_up, refundable_cents(top_up), refund_freezes(top_up.organization), refunds)
    hold = Hold.objects.filter(pk=thing_id).values_list("organization_id", flat=True).first()
    organization = Organization.objects.filter(pk=hold).first() if hold else None
    usage = usage_row(organization, thing_id) if organization else None
    return FoundPrediction(organization, usage) if organization and usage else None


@transaction.atomic
def refund_prediction(
    *, prediction_id: UUID, by: User, reason: str, amount_nano_usd: int | None = None, request_id: UUID | None = None
) -> int:
    """Give back a part of a prediction's charge, or all that is left, and tell the customer. Returns the amount.

    Repeated with the same `request_id`, it changes nothing and returns 0. Raises NotFound, InvalidInput, and
    CorrectionRefused for an amount that exceeds what is left.
    """
    text = _reason(reason)
    found = find(prediction_id)
    if not isinstance(found, FoundPrediction):
        raise NotFound("no such prediction was paid for")
    given = correct_prediction(
        prediction_id=prediction_id, reason=text, amount_nano_usd=amount_nano_usd, correction_id=request_id
    )
    if given:
        _note(found.organization, by, "prediction.refunded", str(prediction_id), {"nano_usd": given, "reason": text})
        tell(
            organization_id=found.organization.pk,
            kind=REFUNDED,
            once=f"{prediction_id}:{request_id or given}",
            subject="A prediction was refunded",
            text=f"The platform gave {usd(given)} of prediction {prediction_id} back to your credit: {text}",
            data={"prediction_id": str(prediction_id), "nano_usd": given},
        )
    return given


def refund_payment(*, top_up_id: UUID, by: User, reason: str, amount_cents: int, request_id: UUID) -> TopUpRefund:
    """Give unspent credit of a top-up back to its card, once per `request_id`.

    Raises NotFound, InvalidInput, and what `billing.refunds.refund_top_up` raises; nothing moved then.
    """
    text = _reason(reason)
    top_up = TopUp.objects.select_related("organization").filter(pk=top_up_id).first()
    if top_up is None:
        raise NotFound("there is no such top-up")
    # Stripe is asked outside of any transaction, so the log says first who asked, and the refund's row how it ended.
    if not TopUpRefund.objects.filter(pk=request_id).exists():
        data: dict[str, audit.Value] = {"cents": amount_cents, "refund": str(request_id), "reason": text}
        _note(top_up.organization, by, "top_up.refund_asked", str(top_up_id), data)
    return refund_top_up(
        organization=top_up.organization, top_up_id=top_up_id, amount_cents=amount_cents, request_id=request_id
    )


def _reason(reason: str) -> str:
    text = reason.strip()
    if not text or len(text) > MAX_REASON or "\x00" in text:
        raise InvalidInput(f"say why, in at most {MAX_REASON} characters; the customer reads it", field="reason")
    return text


def _note(organization: Organization, by: User, act: str, subject: str, data: dict[str, audit.Value]) -> None:
    audit.record(organization=organization, actor=Actor(user=by, as_staff=True), act=act, subject=subject, data=data)
