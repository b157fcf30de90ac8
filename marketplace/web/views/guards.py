"""Guard policies on pages: of one API key, and of one model."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from marketplace.accounts import services as accounts
from marketplace.accounts.errors import Refusal
from marketplace.catalog import services as catalog
from marketplace.web.acting import Acting, member_page, own_model
from marketplace.web.guard_forms import GuardsForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.views.keys import MANAGERS, key_context, own_key


@require_POST
@never_cache
@member_page(*MANAGERS)
def key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """Set the policy of one key and its rotations."""
    found = own_key(acting, key_id)
    form = GuardsForm(request.POST, policy=found.guards)
    if form.is_valid():
        try:
            accounts.set_key_guards(key=found, guards=form.wanted, actor=acting.actor)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "Saved. Requests follow it two seconds from now at the latest.")
            return redirect("web:key", key_id=found.pk)
    return render(request, "web/key.html", key_context(found, guards_form=form), status=400)


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
