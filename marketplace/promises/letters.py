"""The words of a refund: the reason in the books, and what both sides are told. Pure but for what rows hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from marketplace.promises.models import Month, PromiseKind, Refund
from protocol.money import usd


@dataclass(frozen=True, slots=True)
class Letter:
    """One alert, as `marketplace.alerts.services.tell` takes it."""

    organization_id: UUID
    kind: str
    subject: str
    text: str
    data: dict[str, Any]


def reason(month: Month) -> str:
    """Return the reason of each correction, at most 64 characters: it is in statements, receipts and pages."""
    what = "time to first token" if month.kind == PromiseKind.TTFT else "valid answers"
    return f"the promise of {what} was missed in {month.month:%Y-%m}"


def letters_of(refund: Refund, total: int) -> Iterator[Letter]:
    """Yield what the consumer is told, and the creator who bears it. The creator is not told who the consumer is."""
    month = refund.month
    model = month.model.full_name
    about = {
        "model": model,
        "promise": month.kind,
        "month": f"{month.month:%Y-%m}",
        "calls": refund.calls,
        "missed": refund.missed,
        "refund_bps": refund.refund_bps,
        "amount_nano_usd": total,
    }
    found = f"{refund.missed:,} of {refund.calls:,} calls in {month.month:%B %Y} missed the promise of {model}"
    yield Letter(
        refund.organization_id,
        "promise.refunded",
        f"{usd(total)} refunded: {model} missed its promise in {month.month:%B %Y}",
        f"{found}: {_promised(month)}.\n\n{usd(total)} are back in your credit. There is nothing to claim; the "
        "corrections are in your statement, and each names its prediction.",
        about,
    )
    if refund.bearer_id is not None:
        yield Letter(
            refund.bearer_id,
            "promise.missed",
            f"{usd(total)} given back: {model} missed its promise in {month.month:%B %Y}",
            f"{found}: {_promised(month)}.\n\nA customer got {usd(total)} back out of your share. You may change the "
            "promise from the next month on.",
            about,
        )


def _promised(month: Month) -> str:
    bound = month.promise.bound or 0
    if month.kind == PromiseKind.TTFT:
        return f"the first token of 95 % of calls within {bound:,} ms"
    return f"{bound / 100:g} % of answers valid"
