"""Saved cards and automatic top-ups, which the wallet page shows: cards are typed on Stripe's pages alone."""

from __future__ import annotations

import re
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from billing import cards
from billing.auto_top_ups import auto_top_up_of, set_auto_top_up, stop_auto_top_up
from billing.errors import CardInUse, CardNotFound, PaymentProviderUnavailable, TooManyAttempts
from marketplace.accounts.errors import Refusal
from marketplace.accounts.verification import EmailUnverified
from marketplace.web.acting import Acting, member_page
from marketplace.web.payment_forms import AutoTopUpForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.templatetags.intarsia import cents
from marketplace.web.views.wallet import show_wallet

SESSION_ID = re.compile(r"cs_[A-Za-z0-9_]{1,200}")


@require_POST
@member_page("account", fresh=True)
def add_card(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Send the browser to Stripe's page where a card is saved."""
    back = settings.PUBLIC_URL
    try:
        page = cards.open_card_page(
            key=uuid4(),
            organization=acting.organization,
            success_url=f"{back}{reverse('web:card_saved')}?page={{CHECKOUT_SESSION_ID}}",
            cancel_url=f"{back}{reverse('web:wallet')}",
            by=acting.user.pk,
        )
    except PaymentProviderUnavailable:
        messages.error(request, "Stripe cannot be reached now, so no card was saved. Try again in a minute.")
    except (CardInUse, EmailUnverified, TooManyAttempts) as refusal:
        show_as_message(request, refusal, prefix="No card was saved.")
    else:
        return redirect(page)
    return redirect("web:wallet")


@require_safe
@never_cache
@member_page("account")
def card_saved(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Note the card of the page that the browser comes back from, after asking Stripe about it."""
    page = request.GET.get("page", "")
    if SESSION_ID.fullmatch(page) is None:
        raise Http404("no such page")
    waiting = "Stripe has not confirmed the card yet. It appears here within minutes; do not add it again."
    try:
        card = cards.save_card(session_id=page)
    except PaymentProviderUnavailable:
        messages.warning(request, waiting)
        return redirect("web:wallet")
    if card is not None and card.organization_id != acting.organization.pk:
        raise Http404("no such page")
    if card is None:
        messages.warning(request, waiting)
    else:
        messages.success(request, f"Your card {card} is saved.")
    return redirect("web:wallet")


@require_POST
@member_page("account", fresh=True)
def remove_card(request: HttpRequest, acting: Acting, card_id: UUID) -> HttpResponse:
    """Forget one card, here and at Stripe."""
    try:
        cards.remove_card(organization=acting.organization, card_id=card_id)
    except CardNotFound:
        raise Http404("no such card") from None
    except CardInUse as refusal:
        show_as_message(request, refusal, prefix="The card stays.")
    except PaymentProviderUnavailable:
        messages.warning(
            request, "The card is removed and is not charged any more. Stripe cannot be reached to forget it, too."
        )
    else:
        messages.success(request, "The card is removed, here and at Stripe.")
    return redirect("web:wallet")


@require_POST
@member_page("account", fresh=True)
def auto_top_up(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Turn automatic top-ups on, or change their rule."""
    standing = auto_top_up_of(acting.organization)
    form = AutoTopUpForm(
        request.POST, cards=list(cards.cards_of(acting.organization)), rule=standing.rule if standing else None
    )
    if form.is_valid():
        try:
            rule = set_auto_top_up(
                organization=acting.organization,
                card_id=form.cleaned_data["card"],
                threshold_cents=form.cents("threshold"),
                amount_cents=form.cents("amount"),
                monthly_limit_cents=form.cents("monthly_limit"),
                by=acting.user.pk,
            )
        except Refusal as refusal:
            show_in_form(form, refusal, field_names=form.FIELD_NAMES)
        else:
            messages.success(
                request,
                f"Automatic top-ups are on: {rule.card} pays {cents(rule.amount_cents)} when less than "
                f"{cents(rule.threshold_cents)} is available.",
            )
            return redirect("web:wallet")
    return show_wallet(request, acting, auto_form=form, status=400)


@require_POST
@member_page("account")
def stop(request: HttpRequest, acting: Acting) -> HttpResponse:
    """Turn automatic top-ups off."""
    stop_auto_top_up(organization=acting.organization)
    messages.success(request, "Automatic top-ups are off. Your cards stay saved.")
    return redirect("web:wallet")
