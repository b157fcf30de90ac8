"""API keys: created and shown once, revoked."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST

from billing import selectors as billing
from billing.limited_keys import Limits, create_limited_key
from marketplace.accounts import policies, selectors, services
from marketplace.accounts.errors import Refusal
from marketplace.web.acting import Acting, member_page, require_fresh
from marketplace.web.forms import KeyForm
from marketplace.web.refusals import show_in_form


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_variables("text")
@member_page("account")
def keys(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The list and the form. A new key is in this one answer and nowhere else: not in the session, not in a URL."""
    form = KeyForm(request.POST or None, allowed=acting.scopes)
    if request.method != "POST" or not form.is_valid():
        return _page(request, acting, form, status=400 if request.method == "POST" else 200)
    wanted = form.cleaned_data["scopes"]
    if not policies.may_grant(acting.scopes, wanted):
        form.add_error("scopes", "You can only give a key what your own role may do.")
        return _page(request, acting, form, status=400)
    asked = require_fresh(request) if "publish" in wanted else None  # it reaches weights and prices
    if asked is not None:
        return asked
    try:
        key, text = create_limited_key(
            organization=acting.organization,
            name=form.cleaned_data["name"],
            scopes=wanted,
            created_by=acting.user,
            expires_at=form.expires_at,
            limits=Limits(monthly_nano_usd=form.monthly_limit_nano_usd),
            guards=form.guards,
        )
    except Refusal as refusal:
        show_in_form(form, refusal, field_names={"guards": "mask"})
        return _page(request, acting, form, status=400)
    return render(request, "web/key_created.html", {"key": key, "text": text}, status=201)


@require_POST
@member_page("account")
def revoke_key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """Revoke one key of the organization."""
    key = selectors.api_key_of(organization=acting.organization, key_id=key_id)
    if key is None:
        raise Http404("no such key")
    services.revoke_api_key(key=key)
    messages.success(request, f"The key “{key.name}” is revoked. It stops working within five seconds.")
    return redirect("web:keys")


def _page(request: HttpRequest, acting: Acting, form: KeyForm, *, status: int) -> HttpResponse:
    now = timezone.now()
    budgets = {budget.api_key_id: budget for budget in billing.key_budgets(acting.organization)}
    found = list(selectors.api_keys_of(organization=acting.organization)[:200])
    lines = Counter(key.line_id for key in found)
    rows = [
        {
            "key": key,
            "budget": budgets.get(key.line_id),
            "shared": lines[key.line_id] > 1,
            "expired": key.expires_at is not None and key.expires_at <= now,
        }
        for key in found
    ]
    return render(request, "web/keys.html", {"form": form, "rows": rows}, status=status)
