"""Guard policies on pages: of one API key, and of one model."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from marketplace.accounts import services as accounts
from marketplace.accounts.errors import Refusal
from marketplace.accounts.selectors import api_key_of
from marketplace.catalog import services as catalog
from marketplace.guards.counts import Owner, counts_of
from marketplace.guards.policies import PACKAGE, is_installed
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.guard_forms import GuardsForm
from marketplace.web.refusals import show_as_message, show_in_form


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@member_page("account")
def key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """One key: what is done about personal data in its requests, and how often it was."""
    found = api_key_of(organization=acting.organization, key_id=key_id)
    if found is None:
        raise Http404("no such key")
    form = GuardsForm(request.POST or None, policy=found.guards)
    if request.method == "POST" and form.is_valid():
        try:
            accounts.set_key_guards(key=found, guards=form.wanted)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "Saved. Requests follow it two seconds from now at the latest.")
            return redirect("web:key", key_id=found.pk)
    context = {"key": found, "guards": guards_context("key", found.pk, form)}
    return render(request, "web/key.html", context, status=400 if request.method == "POST" else 200)


@require_POST
@member_page("publish")
def model(request: HttpRequest, acting: Acting, slug: str) -> HttpResponse:
    """Set the policy of one model."""
    found = own_model(acting, slug)
    form = GuardsForm(request.POST, policy=found.guards)
    if not form.is_valid():
        messages.error(request, "Nothing was changed: choose one action for each kind.")
    else:
        try:
            catalog.set_model_guards(model=found, guards=form.wanted)
            messages.success(request, "Saved. Requests follow it a second from now at the latest.")
        except Refusal as refusal:
            show_as_message(request, refusal, prefix="Nothing was changed.")
    return redirect("web:my_model", slug=slug)


def guards_context(owner: Owner, owner_id: UUID, form: GuardsForm) -> dict[str, Any]:
    """Return what `parts/guards.html` shows: each kind with its field and its counts of this month."""
    counts = counts_of(settings.ENV.valkey_url, owner, owner_id)
    by_kind = {count.kind: count for count in counts or []}
    return {
        "form": form,
        "rows": [(form[kind], by_kind.get(kind)) for kind in form.fields],
        "counted": counts is not None,
        "missing": None if is_installed() else PACKAGE,
    }
