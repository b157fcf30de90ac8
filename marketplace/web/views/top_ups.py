"""One top-up: its payment, what went back to the card, and the form that gives more of it back."""

from __future__ import annotations

from uuid import UUID, uuid4

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from billing import selectors as billing
from billing.errors import RequestIdReused
from billing.models import TopUp, TopUpRefund
from billing.refunds import refund_freezes, refund_top_up, refundable_cents, tax_back_cents
from marketplace.accounts.errors import Refusal
from marketplace.web.acting import Acting, member_page
from marketplace.web.payment_forms import RefundForm, as_dollars
from marketplace.web.refusals import show_in_form
from marketplace.web.templatetags.intarsia import cents


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account", fresh=True)
def top_up(request: HttpRequest, acting: Acting, top_up_id: UUID) -> HttpResponse:
    """Show one top-up; POST gives a part of it back to the card."""
    found = billing.top_up(acting.organization, top_up_id)
    if found is None:
        raise Http404("no such top-up")
    if request.method != "POST":
        return _page(request, acting, found, None, status=200)
    form = RefundForm(request.POST)
    refund = _refund(acting, found, form) if form.is_valid() else 400
    if isinstance(refund, TopUpRefund):
        _report(request, refund)
        return redirect("web:top_up", top_up_id=found.pk)
    form.renew()
    return _page(request, acting, found, form, status=refund)


def _refund(acting: Acting, found: TopUp, form: RefundForm) -> TopUpRefund | int:
    """Ask for the refund; a refusal is shown in `form`, and its status returned."""
    try:
        return refund_top_up(
            organization=acting.organization,
            top_up_id=found.pk,
            amount_cents=form.amount_cents,
            request_id=form.cleaned_data["request_id"],
        )
    except RequestIdReused as refusal:
        form.add_error(None, "You asked for another amount just before. See the refunds below, then ask again.")
        return refusal.status
    except Refusal as refusal:
        show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        return refusal.status


def _report(request: HttpRequest, refund: TopUpRefund) -> None:
    amount = cents(refund.amount_cents + refund.tax_cents)
    match refund.state:
        case TopUpRefund.State.SENT:
            messages.success(request, f"{amount} is on its way to your card. Banks take 5 to 10 days to show it.")
        case TopUpRefund.State.FAILED:
            messages.error(request, f"{amount} could not be sent back, so the credit is in your wallet again.")
        case _:
            messages.warning(
                request, f"{amount} has left your credit, and Stripe has not answered yet. You need do nothing more."
            )


def _page(request: HttpRequest, acting: Acting, found: TopUp, form: RefundForm | None, *, status: int) -> HttpResponse:
    refundable = refundable_cents(found)
    if form is None:
        form = RefundForm(initial={"request_id": uuid4(), "amount": as_dollars(refundable)})
    context = {
        "top_up": found,
        "form": form,
        "refundable_cents": refundable,
        "tax_back_cents": tax_back_cents(found, refundable) if refundable else 0,
        "freezes": refund_freezes(acting.organization) if refundable else [],
        "refunds": found.refunds.order_by("-created_at"),
        "disputes": found.disputes.order_by("-opened_at"),
    }
    return render(request, "web/top_up.html", context, status=status)
