"""The wallet: balance, top-ups through Stripe Checkout, and every movement."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from billing import selectors as billing
from billing.auto_top_ups import auto_top_up_of
from billing.cards import MAX_CARDS, cards_of
from billing.disputes.selectors import disputes_of
from billing.errors import PaymentMismatch, PaymentProviderUnavailable
from billing.models import Dispute, TopUp
from billing.services import cancel_top_up, refresh_top_up, start_top_up
from marketplace.accounts.errors import Refusal
from marketplace.web.acting import Acting, member_page
from marketplace.web.forms import TopUpForm
from marketplace.web.payment_forms import AutoTopUpForm
from marketplace.web.queries import top_up_lines
from marketplace.web.refusals import show_in_form
from marketplace.web.templatetags.intarsia import cents

SUGGESTED_USD = (10, 25, 100, 500)
MISMATCH = "Stripe reports another amount than you asked for. Nothing was credited; we are looking at it."


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account")
def wallet(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Show the wallet; POST opens a Stripe Checkout page and sends the browser there."""
    form = TopUpForm(request.POST or None)
    status = 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            top_up_id = uuid4()
            back = f"{settings.PUBLIC_URL}{reverse('web:wallet')}?top_up={top_up_id}"
            try:
                top_up = start_top_up(
                    organization=acting.organization,
                    amount_cents=form.amount_cents,
                    success_url=f"{back}&checkout=done",
                    cancel_url=f"{back}&checkout=cancelled",
                    top_up_id=top_up_id,
                    by=acting.user.pk,
                )
                return redirect(top_up.checkout_url)
            except Refusal as refusal:
                show_in_form(form, refusal, field_names=form.FIELD_NAMES)
                status = refusal.status
    elif request.GET.get("checkout") in ("done", "cancelled"):
        _report_return(request, acting)
    return show_wallet(request, acting, form=form, status=status)


def show_wallet(
    request: HttpRequest,
    acting: Acting,
    *,
    form: TopUpForm | None = None,
    auto_form: AutoTopUpForm | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render the wallet page; a form that was refused keeps what was typed."""
    cards = list(cards_of(acting.organization))
    auto = auto_top_up_of(acting.organization)
    if auto_form is None:
        auto_form = AutoTopUpForm(cards=cards, rule=auto.rule if auto else None)
    context: dict[str, Any] = {
        "form": form or TopUpForm(),
        "auto_form": auto_form,
        "auto": auto,
        "cards": cards,
        "more_cards": len(cards) < MAX_CARDS,
        "wallet": billing.wallet(acting.organization),
        "top_ups": top_up_lines(acting.organization, limit=20),
        "disputes": [one for one in disputes_of(acting.organization) if one.state == Dispute.State.OPEN],
        "lines": billing.statement(acting.organization, limit=50),
        "suggested": SUGGESTED_USD,
    }
    return render(request, "web/wallet.html", context, status=status)


@require_POST
@member_page("account")
def cancel(request: HttpRequest, acting: Acting, top_up_id: UUID) -> HttpResponse:
    """Close the payment page of one top-up that waits."""
    top_up = billing.top_up(acting.organization, top_up_id)
    if top_up is None:
        raise Http404("no such top-up")
    try:
        top_up = cancel_top_up(top_up_id=top_up.pk)
    except PaymentProviderUnavailable:
        messages.error(request, "Stripe cannot be reached, so the payment page is still open. Try again in a minute.")
    except PaymentMismatch:
        messages.error(request, MISMATCH)
    else:
        _report(request, top_up, still_waiting="The payment of {} is under way at Stripe and cannot be cancelled.")
    return redirect("web:wallet")


def _report_return(request: HttpRequest, acting: Acting) -> None:
    """Say how the top-up that the browser comes back from stands in the books, after asking Stripe about it."""
    top_up = _returned_top_up(request, acting)
    if top_up is None:
        return
    try:
        top_up = refresh_top_up(top_up_id=top_up.pk)
    except PaymentProviderUnavailable:
        pass  # the books say what is known, and the catch-up task asks again
    except PaymentMismatch:
        messages.error(request, MISMATCH)
        return
    if request.GET.get("checkout") == "cancelled":
        waiting = "You left the payment page. {} is not paid; you can finish or cancel that top-up below."
    else:
        waiting = (
            "Stripe has not confirmed the payment of {} yet. If you paid, credit appears within minutes; "
            "do not pay again."
        )
    _report(request, top_up, still_waiting=waiting)


def _returned_top_up(request: HttpRequest, acting: Acting) -> TopUp | None:
    """Return the top-up that the address names, or the newest one where it names none."""
    named = request.GET.get("top_up")
    if named is None:
        return next(iter(billing.top_ups(acting.organization, limit=1)), None)
    try:
        return billing.top_up(acting.organization, UUID(named))
    except ValueError:
        return None


def _report(request: HttpRequest, top_up: TopUp, *, still_waiting: str) -> None:
    amount = cents(top_up.amount_cents)
    match top_up.state:
        case TopUp.State.CREDITED:
            messages.success(request, f"Payment received: {amount} is in your credit.")
        case TopUp.State.EXPIRED:
            messages.info(request, f"The payment page for {amount} is closed. No money moved.")
        case TopUp.State.FAILED:
            messages.error(request, f"The payment of {amount} failed. No money moved.")
        case _:
            messages.warning(request, still_waiting.format(amount))
