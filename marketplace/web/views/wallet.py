"""The wallet: balance, top-ups through Stripe Checkout, and every movement."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from billing import selectors as billing
from billing.errors import PaymentMismatch, PaymentProviderUnavailable
from billing.models import TopUp
from billing.services import refresh_top_up, start_top_up
from marketplace.accounts.errors import Refusal
from marketplace.web.acting import Acting, member_page
from marketplace.web.forms import TopUpForm
from marketplace.web.refusals import show_in_form

SUGGESTED_USD = (10, 25, 100, 500)
# Coming back from Checkout asks Stripe about the newest few only; webhooks bring the rest.
REFRESHED_ON_RETURN = 3


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
            back = settings.PUBLIC_URL + reverse("web:wallet")
            try:
                top_up = start_top_up(
                    organization=acting.organization,
                    amount_cents=form.amount_cents,
                    success_url=f"{back}?checkout=done",
                    cancel_url=f"{back}?checkout=cancelled",
                )
                return redirect(top_up.checkout_url)
            except Refusal as refusal:
                show_in_form(form, refusal, field_names=form.FIELD_NAMES)
                status = refusal.status
    elif request.GET.get("checkout") == "cancelled":
        messages.info(request, "You left the payment page. No money moved.")
    elif request.GET.get("checkout") == "done":
        _refresh(request, acting)
    context = {
        "form": form,
        "wallet": billing.wallet(acting.organization),
        "top_ups": billing.top_ups(acting.organization, limit=20),
        "lines": billing.statement(acting.organization, limit=50),
        "suggested": SUGGESTED_USD,
    }
    return render(request, "web/wallet.html", context, status=status)


def _refresh(request: HttpRequest, acting: Acting) -> None:
    """Ask Stripe about what is pending, so that a customer who is back before the webhook sees their credit."""
    waiting = [row for row in billing.top_ups(acting.organization, limit=10) if row.state == TopUp.State.PENDING]
    try:
        states = [refresh_top_up(top_up_id=row.pk).state for row in waiting[:REFRESHED_ON_RETURN]]
    except PaymentProviderUnavailable:
        states = ["unknown"]
    except PaymentMismatch:
        messages.error(
            request, "Stripe reports another amount than you asked for. Nothing was credited; we are looking at it."
        )
        return
    if TopUp.State.CREDITED in states or not waiting:
        messages.success(request, "Payment received. Your credit is below.")
    else:
        messages.warning(
            request,
            "Stripe has not confirmed the payment yet. If you paid, credit appears within minutes; do not pay again.",
        )
