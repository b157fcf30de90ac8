"""Webhooks: where events are posted to, with which secret, and what became of each delivery."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from billing.budgets.webhooks import body_of, secret_of
from billing.models import Webhook
from marketplace.accounts.errors import Refusal
from marketplace.alerts import selectors
from marketplace.alerts import webhooks as services
from marketplace.alerts.delivery import message_id_of, message_of
from marketplace.web.acting import Acting, member_page
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.webhook_forms import WebhookForm

PAGE_SIZE = 25


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account")
def webhooks(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The webhooks, and a form for a new one."""
    form = WebhookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = services.create_webhook(organization=acting.organization, actor=acting.actor, **form.cleaned_data)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "Added. Send a test event to see whether it arrives.")
            return redirect("web:webhook", webhook_id=made.pk)
    context = {"form": form, "webhooks": selectors.webhooks_of(acting.organization), "most": services.MAX_WEBHOOKS}
    return render(request, "web/webhooks.html", context, status=400 if request.method == "POST" else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account")
def webhook(request: HttpRequest, acting: Acting, webhook_id: UUID) -> HttpResponse:
    """One webhook: its events, its secret, and its deliveries."""
    found = _own(acting, webhook_id)
    form = WebhookForm(request.POST or None, initial={"url": found.url, "events": found.events})
    if request.method == "POST" and form.is_valid():
        try:
            services.change_webhook(webhook=found, actor=acting.actor, **form.cleaned_data)
        except Refusal as refusal:
            show_in_form(form, refusal)
            found.refresh_from_db()
        else:
            messages.success(request, "Saved.")
            return redirect("web:webhook", webhook_id=found.pk)
    page = Paginator(selectors.deliveries_of(acting.organization, webhook=found), PAGE_SIZE).get_page(
        request.GET.get("page")
    )
    until = found.previous_secret_until
    context = {
        "webhook": found,
        "form": form,
        "secret": secret_of(found),
        "old_secret_until": until if until is not None and until > timezone.now() else None,
        "page": page,
        "rows": [(one, message_id_of(one), message_of(one)["type"], body_of(message_of(one)).decode()) for one in page],
    }
    return render(request, "web/webhook.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@member_page("account")
def rotate_secret(request: HttpRequest, acting: Acting, webhook_id: UUID) -> HttpResponse:
    """Sign with a new secret, and for a day with the one before as well."""
    services.rotate_secret(webhook=_own(acting, webhook_id), actor=acting.actor)
    messages.success(request, "There is a new secret. For 24 hours, messages are signed with the old one as well.")
    return redirect("web:webhook", webhook_id=webhook_id)


@require_POST
@member_page("account")
def test_webhook(request: HttpRequest, acting: Acting, webhook_id: UUID) -> HttpResponse:
    """Post a test event."""
    try:
        services.send_test(webhook=_own(acting, webhook_id), actor=acting.actor)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was sent.")
    else:
        messages.success(request, "A test event is on its way: it is among the deliveries below.")
    return redirect("web:webhook", webhook_id=webhook_id)


@require_POST
@member_page("account")
def switch_webhook(request: HttpRequest, acting: Acting, webhook_id: UUID) -> HttpResponse:
    """Disable a webhook, or enable it again."""
    enabled = request.POST.get("enabled") == "1"
    services.change_webhook(webhook=_own(acting, webhook_id), enabled=enabled, actor=acting.actor)
    messages.success(request, "The webhook is enabled." if enabled else "The webhook is disabled.")
    return redirect("web:webhook", webhook_id=webhook_id)


@require_POST
@member_page("account")
def delete_webhook(request: HttpRequest, acting: Acting, webhook_id: UUID) -> HttpResponse:
    """Post nothing more to an address."""
    if not services.delete_webhook(organization=acting.organization, webhook_id=webhook_id, actor=acting.actor):
        raise Http404("no such webhook")
    messages.success(request, "The webhook is removed.")
    return redirect("web:webhooks")


@require_POST
@member_page("account")
def replay(request: HttpRequest, acting: Acting, delivery_id: int) -> HttpResponse:
    """Post the message of a delivery once more."""
    delivery = selectors.delivery_of(acting.organization, delivery_id) if delivery_id < 2**63 else None
    if delivery is None:
        raise Http404("no such delivery")
    try:
        services.replay_delivery(delivery=delivery, actor=acting.actor)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="Nothing was sent.")
    else:
        messages.success(request, "It is posted again: see the first line of the deliveries.")
    return redirect("web:webhook", webhook_id=delivery.webhook_id)


def _own(acting: Acting, webhook_id: UUID) -> Webhook:
    found = selectors.webhook_of(acting.organization, webhook_id)
    if found is None:
        raise Http404("no such webhook")
    return found
