"""API keys: the list, one key with its limits, its rotation and its end. Members without `account` manage their own."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from billing import selectors as billing
from billing.budgets import tree
from billing.budgets.selectors import budget_of_key
from billing.limited_keys import Limits, create_limited_key
from marketplace.accounts import policies, selectors, services
from marketplace.accounts.errors import Refusal
from marketplace.accounts.models import ApiKey
from marketplace.alerts.keys import revoke_key as revoke
from marketplace.web.acting import Acting, member_page, require_fresh
from marketplace.web.guard_forms import GuardsForm
from marketplace.web.guards_context import guards_context
from marketplace.web.key_forms import ChangeKeyForm, KeyForm, RotateKeyForm
from marketplace.web.refusals import show_as_message, show_in_form
from marketplace.web.snippets import build_key_snippets

MANAGERS = ("account", "predict", "publish")


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@sensitive_variables("text")
@member_page(*MANAGERS)
def keys(request: HttpRequest, acting: Acting) -> HttpResponse:
    """The list and the form. A new key is in this one answer and nowhere else: not in the session, not in a URL."""
    form = KeyForm(request.POST or None, allowed=acting.scopes)
    if request.method != "POST" or not form.is_valid():
        return _page(request, acting, form, status=400 if request.method == "POST" else 200)
    wanted = form.cleaned_data["scopes"]
    if not policies.may_grant(acting.scopes, wanted):
        form.add_error("scopes", "You can only give a key what your own role may do.")
        return _page(request, acting, form, status=400)
    asked = require_fresh(request)  # it spends money, and may reach weights and prices
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
            networks=form.cleaned_data["networks"],
            models=form.cleaned_data["models"],
            actor=acting.actor,
        )
    except Refusal as refusal:
        show_in_form(form, refusal, field_names={"guards": "mask"})
        return _page(request, acting, form, status=400)
    return render(request, "web/key_created.html", {"key": key, "text": text}, status=201)


@require_safe
@never_cache
@member_page(*MANAGERS)
def key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """One key: what it may do, from where, what it has spent, and what is done about personal data."""
    found = own_key(acting, key_id)
    return render(request, "web/key.html", key_context(found))


@require_POST
@never_cache
@member_page(*MANAGERS)
def change_key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """Change name, networks and models of a key and its rotations."""
    found = own_key(acting, key_id)
    form = ChangeKeyForm(request.POST)
    if form.is_valid():
        try:
            services.change_api_key(key=found, actor=acting.actor, **form.cleaned_data)
        except Refusal as refusal:
            show_in_form(form, refusal)
        else:
            messages.success(request, "Saved. Every process follows it within five seconds.")
            return redirect("web:key", key_id=found.pk)
    return render(request, "web/key.html", key_context(found, form=form), status=400)


@require_POST
@never_cache
@sensitive_variables("text")
@member_page(*MANAGERS)
def rotate_key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """Show a key that replaces this one, which works on for the time that was chosen."""
    found = own_key(acting, key_id)
    form = RotateKeyForm(request.POST)
    if not form.is_valid():
        return render(request, "web/key.html", key_context(found, rotate_form=form), status=400)
    if not policies.may_grant(acting.scopes, found.scopes):
        messages.error(request, "The key was not rotated. It may do more than your own role may.")
        return redirect("web:key", key_id=found.pk)
    asked = require_fresh(request)
    if asked is not None:
        return asked
    try:
        new, text = services.rotate_api_key(key=found, created_by=acting.user, overlap=form.lasts, actor=acting.actor)
    except Refusal as refusal:
        show_as_message(request, refusal, prefix="The key was not rotated.")
        return redirect("web:key", key_id=found.pk)
    return render(request, "web/key_created.html", {"key": new, "text": text, "old": found}, status=201)


@require_POST
@member_page(*MANAGERS)
def revoke_key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """Revoke one key."""
    found = own_key(acting, key_id)
    revoke(key=found, actor=acting.actor)
    messages.success(request, f"The key “{found.name}” is revoked. It stops working within five seconds.")
    return redirect("web:keys")


@require_POST
@member_page("account")
def limit_key(request: HttpRequest, acting: Acting, key_id: UUID) -> HttpResponse:
    """Make the budget of a key's line, so that it can be limited."""
    return redirect("web:budget", node_id=tree.key_node(own_key(acting, key_id)).pk)


def own_key(acting: Acting, key_id: UUID) -> ApiKey:
    """Return a key that the member manages. Raises Http404."""
    only = None if policies.manages_all_keys(acting.scopes) else acting.user
    found = selectors.api_key_of(organization=acting.organization, key_id=key_id, created_by=only)
    if found is None:
        raise Http404("no such key")
    return found


def key_context(
    found: ApiKey,
    *,
    form: ChangeKeyForm | None = None,
    rotate_form: RotateKeyForm | None = None,
    guards_form: GuardsForm | None = None,
) -> dict[str, Any]:
    """Return what the page of a key shows."""
    limits = {
        "name": found.name,
        "networks": "\n".join(found.allowed_networks),
        "models": "\n".join(found.allowed_models),
    }
    guards_form = guards_form or GuardsForm(policy=found.guards)
    return {
        "key": found,
        "state": _state_of(found),
        "form": form or ChangeKeyForm(initial=limits),
        "rotate_form": rotate_form or RotateKeyForm(auto_id="rotate_%s"),
        "budget": budget_of_key(found),
        "snippets": build_key_snippets(site=settings.PUBLIC_URL, scopes=found.scopes, models=found.allowed_models),
        "guards": guards_context("key", found.pk, guards_form),
    }


def _state_of(found: ApiKey) -> str:
    if found.revoked_at is not None:
        return "revoked"
    return "expired" if found.expires_at is not None and found.expires_at <= timezone.now() else "active"


def _page(request: HttpRequest, acting: Acting, form: KeyForm, *, status: int) -> HttpResponse:
    budgets = {budget.api_key_id: budget for budget in billing.key_budgets(acting.organization)}
    manages_all = policies.manages_all_keys(acting.scopes)
    managed = selectors.managed_keys_of(
        organization=acting.organization, created_by=None if manages_all else acting.user
    )
    found = list(managed[:200])
    lines = Counter(key.line_id for key in found)
    rows = [
        {
            "key": key,
            "budget": budgets.get(key.line_id),
            "shared": lines[key.line_id] > 1,
            "state": _state_of(key),
        }
        for key in found
    ]
    return render(request, "web/keys.html", {"form": form, "rows": rows, "manages_all": manages_all}, status=status)
