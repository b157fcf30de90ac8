"""Payouts: earnings in reserve, payable and on their way; Stripe's pages; the schedule; each payout's statement."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing.errors import PaymentProviderUnavailable
from billing.models import Payout, PayoutAccount
from billing.payouts import selectors
from billing.payouts.accounts import open_dashboard, open_onboarding, refresh_account, set_terms
from billing.payouts.errors import NoPayoutAccount
from billing.payouts.freezes import freezes
from billing.payouts.services import start_payout
from marketplace.accounts.errors import Refusal
from marketplace.web.acting import Acting, member_page
from marketplace.web.forms import PayoutForm, PayoutTermsForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.templatetags.intarsia import cents
from protocol.money import decimal

UNREACHABLE = "Stripe cannot be reached now. Nothing changed; try again in a minute."


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account", fresh=True)
def payouts(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Show the balances and payouts; POST starts a payout."""
    form = PayoutForm(request.POST if request.method == "POST" else None)  # an empty amount is an answer
    status = 200
    if request.method == "POST":
        status = 400
        if form.is_valid():
            try:
                payout = start_payout(
                    organization=acting.organization, amount_cents=form.amount_cents, requested_by=acting.user
                )
            except Refusal as refusal:
                show_in_form(form, refusal, field_names=form.FIELD_NAMES)
                status = refusal.status
            else:
                messages.success(request, f"{cents(payout.amount_cents)} is on its way to your bank.")
                return redirect("web:payouts")
    elif "setup" in request.GET:
        _report_setup(request, acting)
    return _page(request, acting, form, None, status=status)


@require_POST
@member_page("account", fresh=True)
def terms(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Change the schedule and the minimum."""
    form = PayoutTermsForm(request.POST)
    if form.is_valid():
        try:
            set_terms(
                organization=acting.organization,
                schedule=form.cleaned_data["schedule"],
                minimum_cents=form.minimum_cents,
            )
        except Refusal as refusal:
            show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        else:
            messages.success(request, "Saved. The schedule begins with its next day.")
            return redirect("web:payouts")
    return _page(request, acting, PayoutForm(), form, status=400)


@require_POST
@member_page("account", fresh=True)
def setup(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Send the browser to Stripe's page for details and bank account."""
    page = f"{settings.PUBLIC_URL}{reverse('web:payouts')}"
    try:
        url = open_onboarding(
            organization=acting.organization, return_url=f"{page}?setup=done", refresh_url=f"{page}?setup=again"
        )
    except PaymentProviderUnavailable:
        messages.error(request, UNREACHABLE)
        return redirect("web:payouts")
    return redirect(url)


@require_POST
@member_page("account", fresh=True)
def stripe_dashboard(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Send the browser to the creator's own pages at Stripe."""
    try:
        return redirect(open_dashboard(organization=acting.organization))
    except PaymentProviderUnavailable:
        messages.error(request, UNREACHABLE)
    except NoPayoutAccount as refusal:
        show_as_message(request, refusal, prefix="")
    return redirect("web:payouts")


@require_safe
@never_cache
@member_page("account")
def payout(request: HttpRequest, acting: Acting, payout_id: UUID) -> HttpResponse:
    """One payout: where it is, and what it is made of."""
    found = _owned(acting, payout_id)
    context = {"payout": found, "statement": selectors.payout_statement(found), "waits": _waits(acting, found)}
    return render(request, "web/payout.html", context)


@require_safe
@never_cache
@member_page("account")
def payout_csv(request: HttpRequest, acting: Acting, payout_id: UUID) -> HttpResponse:
    """The statement of one payout as a file."""
    found = _owned(acting, payout_id)
    statement = selectors.payout_statement(found)
    if statement is None:
        raise Http404("the statement is not there yet")
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("day_utc", "movement", "count", "amount_usd"))
    writer.writerow(("", "opening balance", "", decimal(statement.opening_nano_usd)))
    for line in statement.lines:
        writer.writerow((line.day, line.kind, line.movements, decimal(line.amount_nano_usd)))
    writer.writerow(("", "closing balance", "", decimal(statement.closing_nano_usd)))
    name = f"{acting.organization.slug}-payout-{found.created_at:%Y-%m-%d}-{str(found.pk)[:8]}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8", headers=headers)


def _report_setup(request: HttpRequest, acting: Acting) -> None:
    """Say how the account stands after the visit to Stripe, whatever the address claims."""
    try:
        account = refresh_account(organization_id=acting.organization.pk)
    except PaymentProviderUnavailable:
        messages.warning(request, "Stripe cannot be reached now; your account shows here as soon as it can.")
        return
    except NoPayoutAccount:
        return
    if account.state == PayoutAccount.State.ACTIVE:
        messages.success(request, "Stripe has what it needs: payouts can go to your bank.")
    elif request.GET["setup"] == "again":
        messages.info(request, "That page of Stripe was for one visit. Continue below: what you filled in is kept.")
    else:
        messages.warning(request, "Stripe still needs something from you before it can pay out. Continue below.")


def _page(
    request: HttpRequest, acting: Acting, form: PayoutForm, terms_form: PayoutTermsForm | None, *, status: int
) -> HttpResponse:
    overview = selectors.overview(acting.organization)
    account = overview.account
    if terms_form is None and account is not None:
        minimum = Decimal(account.minimum_cents) / 100
        terms_form = PayoutTermsForm(initial={"schedule": account.schedule, "minimum": minimum})
    context: dict[str, Any] = {
        "overview": overview,
        "account": account,
        "form": form,
        "terms_form": terms_form,
        "payouts": selectors.payouts(acting.organization),
        "demonstration": settings.ENV.payout_reserve_days == 0,
    }
    return render(request, "web/payouts.html", context, status=status)


def _owned(acting: Acting, payout_id: UUID) -> Payout:
    found = selectors.payout(acting.organization, payout_id)
    if found is None:
        raise Http404("no such payout")
    return found


def _waits(acting: Acting, payout: Payout) -> list[str]:
    """Return the sentences that say why a payout does not go on, if it does not."""
    if payout.state not in (Payout.State.CREATED, Payout.State.TRANSFERRED):
        return []
    return [freeze.sentence for freeze in freezes(acting.organization)]
